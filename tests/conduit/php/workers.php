<?php

/**
 * Workers to be run. What they do stands in their data.
 */
final class ActingWorker extends PhabricatorWorker {

  public function getRequiredLeaseTime() {
    $lease = idx((array)$this->getTaskData(), 'lease');
    if ($lease === 'broken') {
      throw new Exception('the lease time is broken');
    }
    return $lease;
  }

  public function getMaximumRetryCount() {
    return idx((array)$this->getTaskData(), 'maximum');
  }

  public function getWaitBeforeRetry($task) {
    $wait = idx((array)$this->getTaskData(), 'wait');
    if ($wait === 'by count') {
      return 10 * $task->getFailureCount();
    }
    if ($wait === 'by failure') {
      $told = $task->getExecutionException()->getMessage() === 'a';
      return ($told && time() - $task->getFailureTime() < 60) ? 40 : 50;
    }
    if ($wait === 'broken') {
      throw new Exception('the wait is broken');
    }
    return $wait;
  }

  protected function doWork() {
    $data = $this->getTaskData();
    if (is_object($data)) {
      throw new Exception('Expected task data to be a dictionary.');
    }
    fwrite(STDERR, 'RAN '.json_encode($data)."\n");
    switch (idx((array)$data, 'do')) {
      case 'say':
        echo 'this is no JSON';
        return;
      case 'flush':
        echo 'this is no JSON';
        ob_flush();
        return;
      case 'throw':
        throw new Exception(hex2bin($data['hex']));
      case 'raise':
        return no_such_function();
      case 'give up':
        throw new PhabricatorWorkerPermanentFailureException('it cannot be done');
      case 'yield':
        throw new PhabricatorWorkerYieldException($data['seconds']);
      case 'exit':
        echo 'this is no JSON';
        exit(0);
      case 'save':
        return $this->getCurrentWorkerTask()->save();
      case 'extend':
        try {
          $this->getCurrentWorkerTask()->setLeaseDuration(60);
        } catch (LiskEphemeralObjectException $ex) {
          $expires = $this->getCurrentWorkerTask()->getLeaseExpires();
          throw new Exception('it has '.($expires - time()));
        }
        return;
      case 'write':
        return AphrontWriteGuard::willWrite();
      case 'query':
        $profiler = PhutilServiceProfiler::getInstance();
        for ($ii = 0; $ii < 100; $ii++) {
          $id = $profiler->beginServiceCall(array('type' => 'query'));
          $profiler->endServiceCall($id, array());
        }
        throw new Exception('kept '.count($profiler->getServiceCallLog()));
      case 'exhaust':
        return str_repeat('a', 2 ** 40);
      case 'buffer':
        ob_start();
        echo 'this is no JSON';
        return;
      case 'sticky buffer':
        echo 'this is no ';
        ob_start(null, 0, 0);
        echo 'JSON';
        return;
      case 'sticky buffer and exit':
        echo 'this is no ';
        ob_start(null, 0, 0);
        echo 'JSON';
        exit(0);
      case 'print 64 MiB':
        ini_set('memory_limit', '32M');
        $text = str_repeat('x', 2 ** 20);
        for ($ii = 0; $ii < 64; $ii++) {
          echo $text;
        }
        return;
      case 'tell':
        $task = $this->getCurrentWorkerTask();
        throw new Exception(
          implode(
            ' ',
            array(
              $task->getID(),
              $task->getTaskClass(),
              $task->getFailureCount(),
              $task->getPriority(),
              $task->getLeaseOwner(),
              $task->getLeaseExpires(),
              ini_get('max_execution_time'),
              ignore_user_abort(),
            )));
      case 'wait for':
        while (!file_exists($data['file'])) {
          usleep(10000);
          clearstatcache();
        }
        return;
      case 'stage':
        foreach ($data['children'] as $child) {
          $this->queueTask($child[0], $child[1], idx($child, 2, array()));
        }
        return;
      case 'take 20 ms':
        usleep(20000);
        return;
      case 'take 1.1 s':
        usleep(1100000);
        switch (idx($data, 'end')) {
          case 'throw':
            throw new Exception('a');
          case 'stage':
            $this->queueTask('ActingWorker', array('do' => 'nothing'));
        }
        return;
      case 'stage a rubbish id':
        $this->queueTask('A', array(), array('objectPHID' => "\xff"));
        return;
      case 'stage rubbish':
        $this->queueTask('ActingWorker', array('text' => "\xff"));
        return;
    }
  }

}

final class NotAWorker {}

abstract class AbstractWorker extends PhabricatorWorker {}
