<?php

/**
 * Stand-ins for the parts of Phorge that the extension touches, as small as
 * they can be and as strict as the real ones.
 */

final class Harness {
  public static $config = array();
  public static $methods = array();
}

function idx(array $map, $key, $default = null) {
  return array_key_exists($key, $map) ? $map[$key] : $default;
}

function id($value) {
  return $value;
}

function coalesce(...$values) {
  foreach ($values as $value) {
    if ($value !== null) {
      return $value;
    }
  }
  return null;
}

function pht($text, ...$arguments) {
  return $arguments ? vsprintf($text, $arguments) : $text;
}

function phlog($what) {
  fwrite(STDERR, 'LOG '.get_class($what).': '.$what->getMessage()."\n");
}

function newv($class, array $arguments) {
  $reflection = new ReflectionClass($class);
  return $reflection->newInstanceArgs($arguments);
}

function phutil_utf8ize($text) {
  return json_decode(json_encode($text, JSON_INVALID_UTF8_SUBSTITUTE));
}

function phutil_json_encode($value) {
  $text = json_encode($value);
  if ($text === false) {
    throw new Exception('Failed to JSON encode value: '.json_last_error_msg());
  }
  return $text;
}

final class PhutilServiceProfiler {
  public static function getInstance() {
    return new self();
  }
  public function enableDiscardMode() {}
}

final class PhabricatorEnv {
  public static function getEnvConfig($key) {
    foreach (get_declared_classes() as $class) {
      if (is_subclass_of($class, 'PhabricatorApplicationConfigOptions')) {
        foreach (id(new $class())->getOptions() as $option) {
          if ($option->key === $key) {
            return idx(Harness::$config, $key, $option->default);
          }
        }
      }
    }
    throw new Exception("Trying to read the undeclared option {$key}!");
  }
}

final class AphrontRequest {
  public static function getHTTPHeader($name) {
    return idx($_SERVER, 'HTTP_'.strtoupper(str_replace('-', '_', $name)));
  }
}

final class PhabricatorDaemonsApplication {}

final class StandInOption {
  public $key;
  public $default;
  public $hidden = false;
  public $locked = false;
  public function setHidden($hidden) {
    $this->hidden = $hidden;
    return $this;
  }
  public function setLocked($locked) {
    $this->locked = $locked;
    return $this;
  }
  public function setDescription($text) {
    return $this;
  }
}

abstract class PhabricatorApplicationConfigOptions {
  abstract public function getName();
  abstract public function getDescription();
  abstract public function getGroup();
  abstract public function getOptions();
  final protected function newOption($key, $type, $default) {
    $option = new StandInOption();
    $option->key = $key;
    $option->default = $default;
    return $option;
  }
}


/**
 * Options that Phorge has by itself.
 */
final class StandInConfigOptions extends PhabricatorApplicationConfigOptions {
  public function getName() {
    return '';
  }
  public function getDescription() {
    return '';
  }
  public function getGroup() {
    return 'core';
  }
  public function getOptions() {
    return array(
      $this->newOption('storage.default-namespace', 'string', 'phabricator'),
      $this->newOption('phd.taskmasters', 'int', 4),
    );
  }
}


/* -(  Conduit  )------------------------------------------------------------ */


class ConduitException extends Exception {
  private $description;
  final public function setErrorDescription($description) {
    $this->description = $description;
    return $this;
  }
  final public function getErrorDescription() {
    return $this->description;
  }
}

final class ConduitAPIRequest {
  private $params;
  public function __construct(array $params) {
    $this->params = $params;
  }
  public function getAllParameters() {
    return $this->params;
  }
}

abstract class ConduitAPIMethod {
  abstract public function getAPIMethodName();
  abstract public function getMethodDescription();
  abstract protected function defineParamTypes();
  abstract protected function defineReturnType();
  abstract protected function execute(ConduitAPIRequest $request);
  protected function defineErrorTypes() {
    return array();
  }
  public function isInternalAPI() {
    return false;
  }
  public function shouldRequireAuthentication() {
    return true;
  }
  public function shouldAllowUnguardedWrites() {
    return false;
  }
  public function describeError($code) {
    return idx($this->defineErrorTypes(), $code, 'Unknown Error');
  }
  public function call(array $params) {
    $unknown = array_diff_key($params, $this->defineParamTypes());
    if ($unknown) {
      $names = implode("', '", array_keys($unknown));
      throw id(new ConduitException('ERR-CONDUIT-CALL'))->setErrorDescription(
        "API Method does not define these parameters: '{$names}'.");
    }
    return $this->execute(new ConduitAPIRequest($params));
  }
}


/* -(  Locks  )-------------------------------------------------------------- */


final class PhutilLockException extends Exception {}

/**
 * A file that is locked, in place of a lock of the database server.
 */
final class PhabricatorGlobalLock {
  private $path;
  private $file;
  private function __construct($path) {
    $this->path = $path;
  }
  public static function newLock($name) {
    return new self(idx(Harness::$config, 'locks').'/'.$name);
  }
  public function lock() {
    $this->file = @fopen($this->path, 'c');
    if (!$this->file) {
      throw new Exception('No connection for a lock.');
    }
    if (!flock($this->file, LOCK_EX | LOCK_NB)) {
      throw new PhutilLockException($this->path);
    }
  }
  public function unlock() {
    flock($this->file, LOCK_UN);
  }
}


/* -(  Workers  )------------------------------------------------------------ */


final class PhutilMissingSymbolException extends Exception {}
final class LiskEphemeralObjectException extends Exception {}
final class PhabricatorWorkerPermanentFailureException extends Exception {}

final class PhabricatorWorkerYieldException extends Exception {
  private $duration;
  public function __construct($duration) {
    $this->duration = $duration;
    parent::__construct();
  }
  public function getDuration() {
    return $this->duration;
  }
}

final class PhabricatorWorkerLeaseQuery {
  public static function getDefaultWaitBeforeRetry() {
    return 300;
  }
}

/**
 * Getters and setters are made up, as those of Phorge's storage objects are.
 */
final class PhabricatorWorkerActiveTask {
  private $values = array();
  private $ephemeral = false;
  public function __call($name, $arguments) {
    $field = substr($name, 3);
    if (substr($name, 0, 3) === 'get') {
      return idx($this->values, $field);
    }
    $this->values[$field] = $arguments[0];
    return $this;
  }
  public function makeEphemeral() {
    $this->ephemeral = true;
    return $this;
  }
  public function save() {
    if ($this->ephemeral) {
      throw new LiskEphemeralObjectException();
    }
  }
  public function getWorkerInstance() {
    $class = $this->getTaskClass();
    if (!class_exists($class)) {
      throw new PhutilMissingSymbolException("Failed to load symbol \"{$class}\"");
    }
    if (!is_subclass_of($class, 'PhabricatorWorker')) {
      throw new PhabricatorWorkerPermanentFailureException(
        "Task class '{$class}' does not extend PhabricatorWorker.");
    }
    return newv($class, array($this->getData()));
  }
}

abstract class PhabricatorWorker {
  const PRIORITY_DEFAULT = 2000;
  private $data;
  private $queued = array();
  private $task;
  final public function __construct($data) {
    $this->data = $data;
  }
  abstract protected function doWork();
  final public function executeTask() {
    $this->doWork();
  }
  final protected function getTaskData() {
    return $this->data;
  }
  final protected function queueTask($class, array $data, array $options = array()) {
    $this->queued[] = array($class, $data, $options);
  }
  final protected function getQueuedTasks() {
    return $this->queued;
  }
  final public function flushTaskQueue($defaults = array()) {
    foreach ($this->queued as $task) {
      $task[2] += $defaults;
      fwrite(STDERR, 'FLUSHED '.json_encode($task)."\n");
    }
    $this->queued = array();
  }
  public function setCurrentWorkerTask($task) {
    $this->task = $task;
    return $this;
  }
  public function getCurrentWorkerTask() {
    return $this->task;
  }
  public function getRequiredLeaseTime() {
    return null;
  }
  public function getMaximumRetryCount() {
    return null;
  }
  public function getWaitBeforeRetry($task) {
    return null;
  }
}
