<?php

/**
 * Stand-ins for what a run of a task writes to or is kept out by: the guard of
 * all writes, locks, and the task's own row.
 */

/**
 * Refuses every write of a request that no form with a CSRF token has sent.
 */
final class AphrontWriteGuard extends Phobject {
  private static $instance;
  private $depth = 0;
  public function __construct() {
    self::$instance = $this;
  }
  public static function willWrite() {
    if (!self::$instance) {
      throw new Exception('Unguarded write! There must be an active guard.');
    }
    if (self::$instance->depth === 0) {
      throw new Exception('You are trying to save without a CSRF token.');
    }
  }
  public static function beginUnguardedWrites() {
    self::$instance->depth++;
  }
  public static function endUnguardedWrites() {
    if (self::$instance->depth-- <= 0) {
      throw new Exception('More ends of unguarded writes than beginnings.');
    }
  }
}


/* -(  Locks  )-------------------------------------------------------------- */


final class PhutilLockException extends Exception {}

/**
 * A file that is locked, in place of a lock of the database server.
 */
final class PhabricatorGlobalLock extends Phobject {
  private static $locks = array();
  private $name;
  private $file;
  private $call;

  private function __construct($name) {
    $this->name = $name;
  }

  public static function newLock($name, array $parameters = array()) {
    $full = $name.($parameters ? json_encode($parameters) : '');
    if (!self::$locks) {
      register_shutdown_function(array(__CLASS__, 'unlockAll'));
    }
    if (!isset(self::$locks[$full])) {
      self::$locks[$full] = new self($full);
    }
    return self::$locks[$full];
  }

  public function lock($wait = 0) {
    if ($this->file) {
      throw new Exception("Lock '{$this->name}' has already been locked.");
    }
    $profiler = PhutilServiceProfiler::getInstance();
    $call = $profiler->beginServiceCall(array('type' => 'lock'));
    try {
      $this->file = $this->open($wait);
      $this->call = $call;
    } catch (Exception $ex) {
      $profiler->endServiceCall($call, array('lock' => false));
      throw $ex;
    }
    return $this;
  }

  private function open($wait) {
    AphrontWriteGuard::willWrite(); // it sets the session's time-out first
    $file = @fopen(idx(Harness::$config, 'locks').'/'.$this->name, 'c');
    if (!$file) {
      throw new Exception('No connection for a lock.');
    }
    $until = microtime(true) + $wait;
    while (!flock($file, LOCK_EX | LOCK_NB)) {
      if (microtime(true) >= $until) {
        throw new PhutilLockException($this->name);
      }
      usleep(10000);
    }
    return $file;
  }

  public function unlock() {
    if (!$this->file) {
      throw new Exception("Lock '{$this->name}' is not locked!");
    }
    fclose($this->file);
    $this->file = null;
    PhutilServiceProfiler::getInstance()->endServiceCall(
      $this->call,
      array('lock' => true));
    return $this;
  }

  public static function unlockAll() {
    foreach (self::$locks as $lock) {
      if ($lock->file) {
        $lock->unlock();
      }
    }
  }

  /**
   * Names of locks that are held.
   */
  public static function held() {
    $names = array();
    foreach (self::$locks as $lock) {
      if ($lock->file) {
        $names[] = $lock->name;
      }
    }
    return $names;
  }
}


/* -(  The cache in the database  )------------------------------------------ */


/**
 * A file for each key, in place of a row.
 */
final class PhabricatorKeyValueDatabaseCache extends Phobject {
  public function setKeys(array $keys, $ttl = null) {
    foreach ($keys as $key => $value) {
      if (!is_string($value)) {
        throw new Exception('Only strings may be written to the DB cache!');
      }
      $row = json_encode(array($value, $ttl ? time() + $ttl : null));
      file_put_contents($this->path($key), $row);
    }
    return $this;
  }
  public function getKeys(array $keys) {
    $found = array();
    foreach ($keys as $key) {
      if (!file_exists($this->path($key))) {
        continue;
      }
      $row = json_decode(file_get_contents($this->path($key)), true);
      if (!$row[1] || $row[1] >= time()) {
        $found[$key] = $row[0];
      }
    }
    return $found;
  }
  public function deleteKeys(array $keys) {
    AphrontWriteGuard::willWrite();
    foreach ($keys as $key) {
      unlink($this->path($key));
    }
    return $this;
  }
  private function path($key) {
    if (strlen($key) > 128) {
      throw new Exception('The key is longer than its column.');
    }
    if (idx(Harness::$config, 'cache') === 'broken') {
      throw new Exception('No connection for the cache.');
    }
    return idx(Harness::$config, 'locks').'/cache.'.$key;
  }
}


/* -(  Tasks  )-------------------------------------------------------------- */


final class PhutilMissingSymbolException extends Exception {}
final class LiskEphemeralObjectException extends Exception {}

/**
 * Getters and setters are made up, as those of all storage objects are: for
 * the properties that there are, and no others.
 */
abstract class PhabricatorWorkerTask extends Phobject {
  private $values = array(
    'id' => null,
    'taskclass' => null,
    'leaseowner' => null,
    'leaseexpires' => null,
    'failurecount' => null,
    'dataid' => null,
    'failuretime' => null,
    'priority' => null,
    'objectphid' => null,
    'containerphid' => null,
    'datecreated' => null,
    'datemodified' => null,
  );
  private $data;
  private $exception;
  private $ephemeral = false;

  public function __call($name, $arguments) {
    $kind = substr($name, 0, 3);
    $field = strtolower(substr($name, 3));
    if (!array_key_exists($field, $this->values)) {
      throw new Exception("Bad getter or setter call: {$name}");
    }
    if ($kind === 'get') {
      return $this->values[$field];
    }
    if ($kind !== 'set') {
      throw new Exception("Unable to resolve method '{$name}'.");
    }
    $this->values[$field] = $arguments[0];
    return $this;
  }

  final public function setData($data) {
    $this->data = $data;
    return $this;
  }

  final public function getData() {
    return $this->data;
  }

  final public function setExecutionException($exception) {
    $this->exception = $exception;
    return $this;
  }

  final public function getExecutionException() {
    return $this->exception;
  }

  public function makeEphemeral() {
    $this->ephemeral = true;
    return $this;
  }

  public function save() {
    if ($this->ephemeral) {
      throw new LiskEphemeralObjectException();
    }
    AphrontWriteGuard::willWrite();
    Harness::say('STRANGE', 'the row of a task was written');
    return $this;
  }

  final public function getWorkerInstance() {
    $class = $this->getTaskClass();
    if (!class_exists($class)) {
      throw new PhutilMissingSymbolException(
        "Failed to load symbol \"{$class}\"");
    }
    if (!is_subclass_of($class, PhabricatorWorker::class)) {
      throw new PhabricatorWorkerPermanentFailureException(
        "Task class '{$class}' does not extend PhabricatorWorker.");
    }
    return newv($class, array($this->getData()));
  }
}

final class PhabricatorWorkerActiveTask extends PhabricatorWorkerTask {
  private $serverTime;
  private $localTime;

  public function setServerTime($time) {
    $this->serverTime = $time;
    $this->localTime = time();
    return $this;
  }

  public function setLeaseDuration($seconds) {
    $this->checkLease();
    $this->setLeaseExpires($this->serverTime + $seconds);
    return parent::save();
  }

  public function save() {
    $this->checkLease();
    return parent::save();
  }

  public function executeTask() {
    $this->checkLease();
    $this->getWorkerInstance()->executeTask();
    return parent::save(); // to the archive
  }

  private function checkLease() {
    $owner = $this->getLeaseOwner();
    $now = $this->serverTime + (time() - $this->localTime);
    if ($owner && $owner !== '(yield)' && $now >= $this->getLeaseExpires()) {
      throw new Exception(
        "Trying to update Task {$this->getID()} after lease expiration!");
    }
  }
}
