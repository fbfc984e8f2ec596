<?php

/**
 * The Conduit method "worker.execute" for a stock Phorge: runs one task of the
 * queue, and says how it ended. queue-runtime calls it for every task class
 * that it has no handler for.
 *
 * `queue-runtime phorge install` puts this file into Phorge's src/extensions/.
 * Do not edit it there: the next install replaces it.
 *
 * Phorge includes every file of that folder on every request. So nothing runs
 * here but this one question, which keeps a second copy of the file from being
 * a fatal error; and the syntax is that of PHP 7.2, which Phorge still allows.
 */
if (!class_exists('QueueRuntimeExecuteConduitAPIMethod', false)) {


final class QueueRuntimeConfigOptions
  extends PhabricatorApplicationConfigOptions {

  public function getName() {
    return pht('Queue Runtime');
  }

  public function getDescription() {
    return pht('Who may have tasks run here, and which.');
  }

  public function getGroup() {
    return 'core';
  }

  public function getApplicationClassName() {
    return PhabricatorDaemonsApplication::class;
  }

  public function getOptions() {
    return array(
      $this->newOption('queue-runtime.token', 'string', null)
        ->setHidden(true)
        ->setDescription(
          pht(
            'Service token that callers of "worker.execute" must send. '.
            'Without one nobody may call it. PHP may have it as the variable '.
            'QUEUE_RUNTIME_CONDUIT_TOKEN instead.')),
      $this->newOption('queue-runtime.classes', 'list<string>', array('*'))
        ->setLocked(true)
        ->setDescription(
          pht('Task classes that may be run: exact names, or "*" for all.')),
    );
  }

}


/**
 * Reads the follow-up tasks that a worker has staged. Only another worker can.
 */
final class QueueRuntimeFollowupReader extends PhabricatorWorker {

  public function readFollowups(PhabricatorWorker $worker) {
    return $worker->getQueuedTasks();
  }

  protected function doWork() {
    throw new PhabricatorWorkerPermanentFailureException(
      pht('This class is not for tasks.'));
  }

}


/**
 * Does nothing, so that the way to PHP and back can be tried.
 */
final class QueueRuntimeCanaryWorker extends PhabricatorWorker {

  protected function doWork() {
    return;
  }

}


final class QueueRuntimeExecuteConduitAPIMethod extends ConduitAPIMethod {

  const METHOD = 'worker.execute';
  const VERSION = 1;

  const MAX_REASON = 4000;

  const LOCK_TROUBLE_WAIT = 15;
  const BUSY_WAIT = 60;

  // From so many seconds on the answer of a run is kept, for two days: a row
  // whose answer was lost may wait for the lease of its class, which is a day.
  const KEEP_FROM = 1;
  const KEEP_FOR = 172800;

  private static $declaredCount = 0;
  private static $hasRival = false;

  private $isRunning = false;
  private $level = 0;
  private $leftOver = 0;


/* -(  What Conduit asks  )-------------------------------------------------- */


  public function getAPIMethodName() {
    // Two classes with one name stop *all* of Conduit. Whoever builds the list
    // of methods has loaded every class before it asks for names, so that this
    // one sees the other in time and steps aside.
    return self::METHOD.($this->hasRival() ? '.queue-runtime' : '');
  }

  private function hasRival() {
    $declared = get_declared_classes();
    if (count($declared) === self::$declaredCount) {
      return self::$hasRival;
    }
    self::$declaredCount = count($declared);
    self::$hasRival = false;
    foreach ($declared as $class) {
      if ($class === self::class || !is_subclass_of($class, parent::class)) {
        continue;
      }
      try {
        $object = newv($class, array());
        $name = $object->getAPIMethodName();
      } catch (Throwable $ex) {
        continue; // abstract, or broken in a way that is not our business
      }
      if ($name === self::METHOD) {
        self::$hasRival = true;
      }
    }
    return self::$hasRival;
  }

  public function getMethodDescription() {
    return pht('Runs one task of the queue. For queue-runtime alone.');
  }

  public function isInternalAPI() {
    return true;
  }

  public function shouldRequireAuthentication() {
    return false; // no user calls; the service token is checked below
  }

  public function shouldAllowUnguardedWrites() {
    return true; // workers write, and no form with a CSRF token is involved
  }

  protected function defineParamTypes() {
    return array(
      'taskID' => 'required int',
      'taskClass' => 'required string',
      'data' => 'required string, JSON',
      'executionVersion' => 'optional int',
      'phase' => 'optional string',
      'failureCount' => 'optional int',
      'priority' => 'optional int',
      'leaseOwner' => 'optional string',
      'leaseExpires' => 'optional int',
      'lostLeaseOwners' => 'optional list<string>',
    );
  }

  protected function defineReturnType() {
    return 'map<string, wild>';
  }

  protected function defineErrorTypes() {
    return array(
      'ERR-WORKER-AUTH' => pht('A valid service token is required.'),
      'ERR-WORKER-CONTEXT' =>
        pht('A valid versioned execution context is required.'),
      'ERR-WORKER-CLASS' => pht('This task class may not be run here.'),
      'ERR-WORKER-EXIT' => pht('The worker ended PHP itself, by exit().'),
      'ERR-NO-TASK-CLASS' => pht('A task class is required.'),
    );
  }


/* -(  The call  )----------------------------------------------------------- */


  protected function execute(ConduitAPIRequest $request) {
    $token_source = $this->checkToken();

    $params = $request->getAllParameters();
    if (!isset($params['executionVersion']) && !isset($params['phase'])) {
      return $this->executeUnversioned($params);
    }

    if (idx($params, 'executionVersion') !== self::VERSION) {
      throw new ConduitException('ERR-WORKER-CONTEXT');
    }

    switch (idx($params, 'phase')) {
      case 'capabilities':
        $result = array(
          'result' => 'capabilities',
          'keepsAnswers' => true,
          'facts' => $this->readFacts($token_source),
        );
        break;
      case 'prepare':
        $result = $this->prepare($this->newTask($params));
        break;
      case 'execute':
        $task = $this->newTask($params);
        $lost = (array)idx($params, 'lostLeaseOwners', array());
        $result = $this->executeLocked($task, true, $lost);
        break;
      default:
        throw new ConduitException('ERR-WORKER-CONTEXT');
    }

    // "taskLock" in each reply, so that the caller notices when another method
    // has taken this one's place, which may not lock what it runs.
    return array('executionVersion' => self::VERSION, 'taskLock' => true)
      + $result;
  }

  /**
   * The call of the first release: no phases, and nobody there to store what
   * the worker has staged.
   */
  private function executeUnversioned(array $params) {
    $params['taskID'] = (int)idx($params, 'taskID');
    $params += array(
      'failureCount' => 0,
      'priority' => PhabricatorWorker::PRIORITY_DEFAULT,
      'leaseOwner' => 'worker.execute',
      'leaseExpires' => time() + 7200,
    );
    $result = $this->executeLocked($this->newTask($params), false, array());
    if ($result['result'] === 'busy') {
      return array('result' => 'yield', 'retry' => self::BUSY_WAIT);
    }
    return $result;
  }

  /**
   * Refuse whoever does not send the token; else, where it is set.
   */
  private function checkToken() {
    $sent = (string)AphrontRequest::getHTTPHeader('X-Service-Token');

    // The first one that is set counts.
    $tokens = array(
      'option' => (string)PhabricatorEnv::getEnvConfig('queue-runtime.token'),
      'server' => (string)idx($_SERVER, 'QUEUE_RUNTIME_CONDUIT_TOKEN'),
      'environment' => (string)getenv('QUEUE_RUNTIME_CONDUIT_TOKEN'),
    );
    foreach ($tokens as $source => $token) {
      if ($token !== '') {
        if (hash_equals($token, $sent)) {
          return $source;
        }
        throw new ConduitException('ERR-WORKER-AUTH');
      }
    }
    throw id(new ConduitException('ERR-WORKER-AUTH'))
      ->setErrorDescription(
        pht('No service token is set, so that nobody may call this.'));
  }

  /**
   * What an administrator may have got wrong, for `queue-runtime doctor`. Who
   * gets here has the token; no secret is told all the same.
   */
  private function readFacts($token_source) {
    $this->liftTimeLimit();
    // Not before PHP 7.3, and under php-fpm alone.
    $pool = function_exists('fpm_get_status') ? fpm_get_status() : false;
    return array(
      'php' => PHP_VERSION,
      'sapi' => PHP_SAPI,
      'tokenFrom' => $token_source,
      'postMaxSize' => (string)ini_get('post_max_size'),
      // Phorge lifts the one, and we lift the other: what is still there was
      // set where no code can change it.
      'memoryLimit' => (string)ini_get('memory_limit'),
      'timeLimit' => (int)ini_get('max_execution_time'),
      'childrenUsedUp' => $pool ? idx($pool, 'max-children-reached') : null,
      'namespace' => PhabricatorEnv::getEnvConfig('storage.default-namespace'),
      'taskmasters' => (int)PhabricatorEnv::getEnvConfig('phd.taskmasters'),
      'classes' => array_values(
        PhabricatorEnv::getEnvConfig('queue-runtime.classes')),
    );
  }

  private function liftTimeLimit() {
    // A host may have switched it off, which is no reason to fail.
    if (function_exists('set_time_limit')) {
      set_time_limit(0);
    }
  }

  /**
   * The task as workers see it. It is never saved: the row belongs to the
   * runtime, whose lease it is.
   */
  private function newTask(array $params) {
    $class = idx($params, 'taskClass');
    if (!is_string($class) || $class === '') {
      throw new ConduitException('ERR-NO-TASK-CLASS');
    }

    // Before anything looks for the class.
    $allowed = PhabricatorEnv::getEnvConfig('queue-runtime.classes');
    if (!in_array('*', $allowed, true) && !in_array($class, $allowed, true)) {
      throw id(new ConduitException('ERR-WORKER-CLASS'))
        ->setErrorDescription(
          pht(
            'The option "queue-runtime.classes" does not name "%s".',
            $this->newReason($class)));
    }

    $id = idx($params, 'taskID');
    $failures = idx($params, 'failureCount');
    $priority = idx($params, 'priority');
    $owner = idx($params, 'leaseOwner');
    $expires = idx($params, 'leaseExpires');
    // The expiry is not compared with our clock: it may differ, the call may
    // have waited, and the lease is renewed meanwhile.
    if (!is_int($id) || $id <= 0 ||
        !is_int($failures) || $failures < 0 ||
        !is_int($priority) || $priority < 0 ||
        !is_string($owner) || $owner === '' ||
        !is_int($expires) ||
        !is_string(idx($params, 'data', ''))) {
      throw new ConduitException('ERR-WORKER-CONTEXT');
    }

    return id(new PhabricatorWorkerActiveTask())
      ->setID($id)
      ->setTaskClass($class)
      ->setData(idx($params, 'data', ''))
      ->setFailureCount($failures)
      ->setPriority($priority)
      ->setLeaseOwner($owner)
      ->setLeaseExpires($expires)
      ->setServerTime(time())
      ->makeEphemeral();
  }

  private function newWorker(PhabricatorWorkerActiveTask $task) {
    $text = $task->getData();
    // Not phutil_json_decode(): that takes maps and lists alone, and the data
    // of a mail task is a bare number.
    $data = ($text === '') ? null : json_decode($text, true);
    if ($text !== '' && json_last_error() !== JSON_ERROR_NONE) {
      throw new PhabricatorWorkerPermanentFailureException(
        pht(
          'The data of the task is not valid JSON: %s.',
          json_last_error_msg()));
    }

    $worker = $task->setData($data)->getWorkerInstance();
    $worker->setCurrentWorkerTask($task);
    return $worker;
  }


/* -(  Phases  )------------------------------------------------------------- */


  private function prepare(PhabricatorWorkerActiveTask $task) {
    $worker = null;
    try {
      $worker = $this->newWorker($task);
      $lease = $worker->getRequiredLeaseTime();
    } catch (PhabricatorWorkerPermanentFailureException $ex) {
      return $this->newPermanentFailure($ex->getMessage());
    } catch (Throwable $ex) {
      return $this->newFailure($task, $worker, $ex);
    }

    return array(
      'result' => 'prepared',
      'leaseDuration' => ($lease === null) ? null : (int)$lease,
    );
  }

  /**
   * Run it, unless another call runs it just now: the caller of that one may
   * have gone, and its lease be over, while PHP is still at work. Or it has
   * run, and that was the answer which the caller says it did not get.
   */
  private function executeLocked(
    PhabricatorWorkerActiveTask $task,
    $export,
    array $lost) {

    $lock = PhabricatorGlobalLock::newLock(
      'queue-runtime.task.'.$task->getID());
    try {
      $lock->lock();
    } catch (PhutilLockException $ex) {
      return array('result' => 'busy');
    } catch (Throwable $ex) {
      phlog($ex); // no connection left, say; the task has not run
      return array('result' => 'busy', 'retry' => self::LOCK_TROUBLE_WAIT);
    }

    // Whatever the worker prints would spoil the reply. It is dropped by the
    // page, so that none of it stays in memory.
    $this->level = ob_get_level();
    ob_start(array($this, 'dropOutput'), 4096);
    $this->isRunning = true;
    register_shutdown_function(array($this, 'didShutdown'));
    try {
      $kept = $this->takeKeptAnswer($task, $lost);
      if ($kept !== null) {
        return $kept;
      }
      $start = microtime(true);
      $result = $this->executeTask($task, $export);
      if ($export && microtime(true) - $start >= self::KEEP_FROM) {
        $this->keepAnswer($task, $result);
      }
      return $result;
    } finally {
      $this->endOutput($this->level);
      try {
        $lock->unlock();
      } catch (Throwable $ex) {
        phlog($ex); // it ends with the connection
      }
    }
  }

  public function dropOutput($output) {
    if ($this->isRunning) {
      return '';
    }
    $cut = min($this->leftOver, strlen($output));
    $this->leftOver -= $cut;
    return (string)substr($output, $cut);
  }

  /**
   * The run is over: what comes now is the reply. A worker may have left a
   * buffer that cannot be ended, and ours below it stays then too: it passes
   * the reply on, without what they hold.
   */
  private function endOutput($level) {
    while (ob_get_level() > $level) {
      if (!@ob_end_clean()) {
        break;
      }
    }
    $this->isRunning = false;
    $this->leftOver = 0;
    foreach (array_slice(ob_get_status(true), $this->level) as $buffer) {
      $this->leftOver += $buffer['buffer_used'];
    }
  }

  /**
   * The answer of the newest run, where the caller has lost just this one. Any
   * other is of no use any more, because the task is run now.
   */
  private function takeKeptAnswer(
    PhabricatorWorkerActiveTask $task,
    array $lost) {

    try {
      $cache = new PhabricatorKeyValueDatabaseCache();
      $key = $this->newAnswerKey($task);
      $row = idx($cache->getKeys(array($key)), $key);
      if ($row === null) {
        return null;
      }
      $kept = json_decode($row, true);
      if (in_array($kept['leaseOwner'], $lost, true)) {
        return $kept['answer'];
      }
      $cache->deleteKeys(array($key));
    } catch (Throwable $ex) {
      phlog($ex); // without it the task is run, as if nothing had been kept
    }
    return null;
  }

  private function keepAnswer(
    PhabricatorWorkerActiveTask $task,
    array $answer) {

    try {
      $cache = new PhabricatorKeyValueDatabaseCache();
      $text = phutil_json_encode(
        array(
          'leaseOwner' => $task->getLeaseOwner(),
          'answer' => $answer,
        ));
      $key = $this->newAnswerKey($task);
      $cache->setKeys(array($key => $text), self::KEEP_FOR);
    } catch (Throwable $ex) {
      phlog($ex);
    }
  }

  private function newAnswerKey(PhabricatorWorkerActiveTask $task) {
    return 'queue-runtime.answer.'.$task->getID();
  }

  /**
   * A worker that calls exit() would leave an empty reply, which says as little
   * as a lost one, and the task would soon be tried again, for ever. (What
   * Phorge says of a fatal error is enough.)
   */
  public function didShutdown() {
    $error = error_get_last();
    $fatal = E_ERROR | E_CORE_ERROR | E_COMPILE_ERROR | E_USER_ERROR;
    if (!$this->isRunning || headers_sent() ||
        ($error !== null && ($error['type'] & $fatal))) {
      return;
    }
    $this->endOutput(0);
    header('Content-Type: application/json');
    echo json_encode(
      array(
        'result' => null,
        'error_code' => 'ERR-WORKER-EXIT',
        'error_info' => 'The worker ended PHP itself, by exit().',
      ));
  }

  private function executeTask(PhabricatorWorkerActiveTask $task, $export) {
    $this->liftTimeLimit();
    if (function_exists('ignore_user_abort')) {
      ignore_user_abort(true);
    }
    // Otherwise every query of the run is kept in memory.
    PhutilServiceProfiler::getInstance()->enableDiscardMode();

    $worker = null;
    $start = microtime(true);
    try {
      $worker = $this->newWorker($task);

      $maximum = $worker->getMaximumRetryCount();
      if ($maximum !== null && $task->getFailureCount() > $maximum) {
        throw new PhabricatorWorkerPermanentFailureException(
          pht(
            'Task %d has exceeded the maximum number of failures (%d).',
            $task->getID(),
            $maximum));
      }

      $start = microtime(true);
      $worker->executeTask();
      $result = array('result' => 'success');
    } catch (PhabricatorWorkerPermanentFailureException $ex) {
      $result = $this->newPermanentFailure($ex->getMessage());
    } catch (PhabricatorWorkerYieldException $ex) {
      $result = array(
        'result' => 'yield',
        'retry' => max(5, (int)$ex->getDuration()),
      );
    } catch (Throwable $ex) {
      $result = $this->newFailure($task, $worker, $ex);
    }
    $result['duration'] = (int)(1000000 * (microtime(true) - $start));

    if ($result['result'] === 'success') {
      try {
        $result = $this->takeFollowups($task, $worker, $export) + $result;
      } catch (Throwable $ex) {
        // The next run would fail at this again, after doing the work again.
        phlog($ex);
        return $this->newPermanentFailure(
          pht(
            'It ran, but its follow-up tasks were lost: %s',
            $ex->getMessage()));
      }
    }
    return $result;
  }

  /**
   * Hand the staged tasks to the caller, who stores them together with the
   * success; or store them here, for one who does not know of them.
   */
  private function takeFollowups(
    PhabricatorWorkerActiveTask $task,
    PhabricatorWorker $worker,
    $export) {

    if (!$export) {
      $worker->flushTaskQueue(array('priority' => $task->getPriority()));
      return array();
    }

    $reader = new QueueRuntimeFollowupReader(null);
    $followups = array();
    foreach ($reader->readFollowups($worker) as $staged) {
      list($class, $data, $options) = $staged;
      $options += array('priority' => $task->getPriority());
      $followups[] = array(
        'taskClass' => $class,
        'data' => phutil_json_encode($data),
        'options' => array(
          'priority' => $this->newNumber(
            coalesce(
              $options['priority'],
              PhabricatorWorker::PRIORITY_DEFAULT)),
          'objectPHID' => $this->newText(idx($options, 'objectPHID')),
          'containerPHID' => $this->newText(idx($options, 'containerPHID')),
          'delayUntil' => $this->newNumber(
            idx($options, 'delayUntil') ?: null),
        ),
      );
    }
    // What cannot be told must be known here, not by the code that replies.
    phutil_json_encode($followups);

    return array('followups' => $followups);
  }

  private function newText($value) {
    return is_scalar($value) ? (((string)$value) ?: null) : $value;
  }

  /**
   * The whole number that the database would make of it.
   */
  private function newNumber($value) {
    if (is_bool($value)) {
      return (int)$value;
    }
    return is_numeric($value) ? (int)round($value) : $value;
  }


/* -(  Failures  )----------------------------------------------------------- */


  private function newPermanentFailure($reason) {
    return array(
      'result' => 'permanent-failure',
      'failureType' => 'permanent',
      'failureReason' => $this->newReason($reason),
    );
  }

  private function newFailure(
    PhabricatorWorkerActiveTask $task,
    $worker,
    Throwable $ex) {

    phlog($ex); // the reply has no place for the trace

    // As Phorge's own daemons do, the wait is asked for with this failure
    // counted already.
    $task->setExecutionException($ex);
    $task->setFailureCount($task->getFailureCount() + 1);
    $task->setFailureTime(time());

    $retry = null;
    if ($worker) {
      try {
        $retry = $worker->getWaitBeforeRetry($task);
      } catch (Throwable $other) {
        phlog($other);
      }
    }
    if ($retry === null) {
      $retry = PhabricatorWorkerLeaseQuery::getDefaultWaitBeforeRetry();
    }

    return array(
      'result' => 'failure',
      'failureType' => 'transient',
      'failureReason' => $this->newReason(
        get_class($ex).': '.$ex->getMessage()),
      'retry' => (int)$retry,
    );
  }

  /**
   * Text that JSON can hold, and not too much of it.
   */
  private function newReason($text) {
    // Cut twice: making UTF-8 of what is none takes its time, and three bytes
    // for each. The few bytes more keep the character at the end whole.
    $text = phutil_utf8ize(substr($text, 0, self::MAX_REASON + 3));
    if (strlen($text) <= self::MAX_REASON) {
      return $text;
    }
    $end = self::MAX_REASON;
    while ((ord($text[$end]) & 0xC0) === 0x80) {
      $end--; // in the middle of a character
    }
    return substr($text, 0, $end);
  }

}


}
