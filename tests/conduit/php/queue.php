<?php

/**
 * Stand-ins for the base of all workers, and for how a run may end.
 */

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

final class PhabricatorWorkerLeaseQuery extends Phobject {
  public static function getDefaultWaitBeforeRetry() {
    return 300;
  }
}

abstract class PhabricatorWorker extends Phobject {
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

  final protected function queueTask(
    $class,
    array $data,
    array $options = array()) {
    $this->queued[] = array($class, $data, $options);
    return $this;
  }

  final protected function getQueuedTasks() {
    return $this->queued;
  }

  final public function flushTaskQueue($defaults = array()) {
    foreach ($this->queued as $staged) {
      list($class, $data, $options) = $staged;
      self::scheduleTask($class, $data, $options + $defaults);
    }
    $this->queued = array();
  }

  final public static function scheduleTask(
    $class,
    $data,
    $options = array()) {
    $types = array(
      'priority' => 'is_int',
      'objectPHID' => 'is_string',
      'containerPHID' => 'is_string',
      'delayUntil' => 'is_int',
    );
    foreach ($options as $name => $value) {
      if (!isset($types[$name]) || ($value !== null && !$types[$name]($value))) {
        throw new Exception("Option {$name} of a task is wrong.");
      }
    }
    AphrontWriteGuard::willWrite();
    Harness::say('FLUSHED', json_encode(array($class, $data, $options)));
  }

  public function setCurrentWorkerTask(PhabricatorWorkerTask $task) {
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

  public function getWaitBeforeRetry(PhabricatorWorkerTask $task) {
    return null;
  }
}
