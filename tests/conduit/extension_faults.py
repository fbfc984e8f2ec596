"""Faults in the extension file, one for each rule that it keeps, and the test that must see each of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from tests.conduit import test_kept_answers as kept
from tests.conduit import test_phorge_file as rules
from tests.conduit.php import TOKEN, Php


class Fault(Struct, frozen=True):
    """One change of text. A fault whose text is no longer there fails its test: write it anew for the new text."""

    name: str
    old: str
    new: str
    caught_by: Callable[[Php], None]


def _whole(wrong: dict[str, object]) -> Callable[[Php], None]:
    return partial(rules.test_a_call_that_is_not_whole_is_refused, wrong=wrong)


def _locked(php: Php) -> None:
    rules.test_a_task_is_locked_under_the_name_that_the_documents_tell(php, Path(str(php.config["locks"])))


def _busy(php: Php) -> None:
    rules.test_a_second_call_for_a_task_that_runs_is_told_that_it_is_busy(php, Path(str(php.config["locks"])))


def _copied(php: Php) -> None:
    rules.test_a_second_copy_of_the_file_does_no_harm(php, Path(str(php.config["locks"])))


_runs = rules.test_an_allowed_class_is_run
_cut = rules.test_a_reason_has_at_most_4000_bytes_and_ends_with_a_whole_character
_tells = rules.test_a_worker_sees_its_task_and_has_no_time_limit

FAULTS: tuple[Fault, ...] = (
    # ---- how Phorge takes the file
    Fault("it prints when it is included", "<?php\n\n/**\n * The Conduit", " <?php\n\n/**\n * The Conduit", _runs),
    Fault("it warns when it is included", "final class QueueRuntimeConfig", "$x[0][0];\nfinal class QueueRuntimeConfig",
          _runs),
    Fault("it reads an option when it is included", "final class QueueRuntimeConfigOptions",
          "PhabricatorEnv::getEnvConfig('phd.taskmasters');\nfinal class QueueRuntimeConfigOptions", _runs),
    Fault("a second copy is declared again", "if (!class_exists('QueueRuntimeExecuteConduitAPIMethod', false)) {",
          "if (true) {", _copied),
    Fault("a property is not declared", "  private $isRunning = false;\n", "", _runs),

    # ---- options
    Fault("the console shows the token", "->setHidden(true)", "",
          rules.test_the_web_console_neither_shows_the_token_nor_changes_what_may_be_run),
    Fault("the console changes what may be run", "->setLocked(true)", "",
          rules.test_the_web_console_neither_shows_the_token_nor_changes_what_may_be_run),
    Fault("an option of no type", "'list<string>'", "'list<text>'", _runs),
    Fault("an option of the wrong type", "'queue-runtime.classes', 'list<string>'", "'queue-runtime.classes', 'string'",
          _runs),
    Fault("no class may be run by default", "array('*'))", "array())",
          rules.test_a_success_has_its_duration_in_microseconds),
    Fault("options of no application", "return PhabricatorDaemonsApplication::class", "return 'Daemons'", _runs),
    Fault("options of no group", "return 'core'", "return 'queue'", _runs),

    # ---- what Conduit asks
    Fault("it does not step aside", "($this->hasRival() ? '.queue-runtime' : '')", "''",
          rules.test_beside_another_class_of_that_name_it_steps_aside),
    Fault("it is offered to everybody", "  public function isInternalAPI() {\n    return true;",
          "  public function isInternalAPI() {\n    return false;",
          rules.test_the_web_console_neither_shows_the_token_nor_changes_what_may_be_run),
    Fault("a user has to log in", "return false; // no user calls", "return true; // no user calls", _runs),
    Fault("workers may not write", "return true; // workers write", "return false; // workers write",
          rules.test_a_worker_may_write_without_a_form),
    Fault("a parameter is missing", "      'leaseExpires' => 'optional int',\n", "", _runs),
    Fault("a reserved parameter", "      'phase' => 'optional string',\n",
          "      'phase' => 'optional string',\n      'scope' => 'optional string',\n", _runs),
    Fault("an error without a text", "'ERR-WORKER-AUTH' => pht(", "'ERR-AUTH' => pht(",
          partial(rules.test_another_token_is_refused, sent="another")),

    Fault("what is no method is asked for its name", "        continue; // abstract, or broken", "        // broken",
          rules.test_beside_another_class_of_that_name_it_steps_aside),
    Fault("an error that nobody explains", "      'ERR-WORKER-EXIT' =>", "      'ERR-EXIT' =>",
          rules.test_the_page_of_the_method_tells_each_error_that_it_may_give),

    # ---- the token
    Fault("tokens are compared as numbers", "hash_equals($token, $sent)", "$token == $sent",
          partial(rules.test_tokens_that_are_equal_as_numbers_are_not_equal, token="0e1234", sent="0e5678")),
    Fault("tokens are compared byte by byte", "hash_equals($token, $sent)", "$token === $sent",
          partial(rules.test_the_token_is_compared_in_equal_time, sent=TOKEN)),
    Fault("tokens are not compared", "hash_equals($token, $sent)", "$sent",
          partial(rules.test_another_token_is_refused, sent="another")),
    Fault("a part of the token will do", "hash_equals($token, $sent)",
          "hash_equals(substr($token, 0, strlen($sent)), $sent)",
          partial(rules.test_another_token_is_refused, sent=TOKEN[:-1])),
    Fault("no token is a token", "if ($token !== '') {", "if (true) {",
          partial(rules.test_nobody_may_call_while_no_token_is_set, configured=None, sent="")),
    Fault("a missing header breaks the call", "(string)AphrontRequest::", "AphrontRequest::",
          partial(rules.test_another_token_is_refused, sent=None)),
    Fault("the environment is not looked at", "idx($_SERVER, 'QUEUE_RUNTIME_CONDUIT_TOKEN')", "''",
          rules.test_it_tells_that_the_token_comes_from_phps_environment),
    Fault("the other environment is not looked at", "(string)getenv('QUEUE_RUNTIME_CONDUIT_TOKEN')", "''",
          rules.test_it_tells_that_the_token_comes_from_phps_environment),
    Fault("the next token is tried too",
          "        throw new ConduitException('ERR-WORKER-AUTH');\n      }\n    }\n", "      }\n    }\n",
          rules.test_the_token_may_come_from_phps_environment),
    Fault("nobody is told that there is no token", "pht('No service token is set,", "pht('Go away,",
          partial(rules.test_nobody_may_call_while_no_token_is_set, configured="", sent="anything")),

    # ---- answers that were lost
    Fault("a reply that does not tell of kept answers", "'keepsAnswers' => true,", "",
          rules.test_it_says_what_it_can_do),
    Fault("an answer is not kept", "$cache->setKeys(", "$cache->getKeys(",
          kept.test_a_caller_who_lost_the_answer_is_given_it_and_nothing_is_run_again),
    Fault("an answer of any lease is given", "in_array($kept['leaseOwner'], $lost, true)", "$kept",
          kept.test_the_answer_of_a_lease_that_the_caller_has_not_lost_is_dropped_and_the_task_is_run),
    Fault("an answer outlives a newer run", "      $cache->deleteKeys(array($key));\n", "",
          kept.test_the_answer_of_a_lease_that_the_caller_has_not_lost_is_dropped_and_the_task_is_run),
    Fault("all tasks share one answer", "'queue-runtime.answer.'.$task->getID()", "'queue-runtime.answer.'",
          kept.test_each_task_has_an_answer_of_its_own),
    Fault("the answer of a short run is kept", "const KEEP_FROM = 1;", "const KEEP_FROM = 0;",
          kept.test_the_answer_of_a_short_run_is_not_kept),
    Fault("a cache that cannot be written fails the run",
          "self::KEEP_FOR);\n    } catch (Throwable $ex) {\n      phlog($ex);",
          "self::KEEP_FOR);\n    } catch (Throwable $ex) {\n      throw $ex;",
          kept.test_a_run_does_not_fail_because_its_answer_cannot_be_kept),

    # ---- the protocol
    Fault("a version as text", "idx($params, 'executionVersion') !== self", "idx($params, 'executionVersion') != self",
          _whole({"executionVersion": "1"})),
    Fault("any version", "if (idx($params, 'executionVersion') !== self::VERSION) {", "if (false) {",
          _whole({"executionVersion": 2})),
    Fault("a reply that does not tell of locks", ", 'taskLock' => true", "", rules.test_it_says_what_it_can_do),
    Fault("a time limit is told that can be lifted",
          "private function readFacts($token_source) {\n    $this->liftTimeLimit();",
          "private function readFacts($token_source) {",
          rules.test_it_tells_what_an_administrator_may_have_got_wrong_and_no_secret),
    Fault("the token is told", "'tokenFrom' => $token_source", "'tokenFrom' => $_SERVER['HTTP_X_SERVICE_TOKEN']",
          rules.test_it_tells_what_an_administrator_may_have_got_wrong_and_no_secret),
    Fault("prepare runs the task", "      $lease = $worker->getRequiredLeaseTime();",
          "      $worker->executeTask();\n      $lease = $worker->getRequiredLeaseTime();",
          rules.test_prepare_tells_the_lease_that_the_class_asks_for_and_runs_nothing),
    Fault("prepare asks for no lease", "($lease === null) ? null : (int)$lease", "null",
          rules.test_prepare_tells_the_lease_that_the_class_asks_for_and_runs_nothing),
    Fault("a plain call hands follow-ups to nobody", "executeLocked($this->newTask($params), false, array())",
          "executeLocked($this->newTask($params), true, array())",
          rules.test_the_first_releases_call_works_and_stores_follow_ups_itself),
    Fault("a plain call has a lease that is over", "time() + 7200", "time() - 7200",
          rules.test_what_the_first_releases_call_does_not_tell_is_as_a_taskmaster_has_it),
    Fault("a plain call has its id as a number", "(int)idx($params, 'taskID')", "idx($params, 'taskID')",
          rules.test_what_the_first_releases_call_does_not_tell_is_as_a_taskmaster_has_it),
    Fault("a plain call is told of locks", "if ($result['result'] === 'busy') {", "if (false) {", _busy),

    # ---- the task
    Fault("all classes may be run", "if (!in_array('*', $allowed, true) && !in_array($class, $allowed, true)) {",
          "if (false) {", rules.test_a_class_that_is_not_allowed_is_refused_before_it_is_looked_for),
    Fault("a task without a class", "if (!is_string($class) || $class === '') {", "if (false) {",
          rules.test_a_call_without_a_class_is_refused),
    Fault("an id as text", "!is_int($id) || ", "", _whole({"taskID": "77"})),
    Fault("no id", " || $id <= 0", "", _whole({"taskID": 0})),
    Fault("a count as text", "!is_int($failures) || ", "", _whole({"failureCount": "0"})),
    Fault("a count below zero", " || $failures < 0", "", _whole({"failureCount": -1})),
    Fault("no priority", "!is_int($priority) || ", "", _whole({"priority": None})),
    Fault("no priority of zero", "$priority < 0", "$priority <= 0",
          rules.test_the_least_numbers_there_may_be_are_taken),
    Fault("no owner", " || $owner === ''", "", _whole({"leaseOwner": ""})),
    Fault("an expiry as text", "        !is_int($expires) ||\n", "", _whole({"leaseExpires": "soon"})),
    Fault("data that is no text", " ||\n        !is_string(idx($params, 'data', ''))", "", _whole({"data": {"a": 1}})),
    Fault("a task without its id", "      ->setID($id)\n", "", _tells),
    Fault("a task without its failures", "      ->setFailureCount($failures)\n", "", _tells),
    Fault("a task without its priority", "      ->setPriority($priority)\n", "", _tells),
    Fault("a task without its owner", "      ->setLeaseOwner($owner)\n", "", _tells),
    Fault("a task without its expiry", "      ->setLeaseExpires($expires)\n", "", _tells),
    Fault("a task with a field that there is not", "->setLeaseExpires($expires)",
          "->setLeaseExpires($expires)->setQueue('a')", _runs),
    Fault("a task without a clock", "      ->setServerTime(time())\n", "",
          rules.test_a_worker_that_asks_for_a_longer_lease_does_not_find_it_in_1970),
    Fault("a task that can be saved", "\n      ->makeEphemeral()", "", rules.test_a_worker_cannot_save_the_task),
    Fault("a worker without its task", "    $worker->setCurrentWorkerTask($task);\n", "", _tells),
    Fault("maps become objects", "json_decode($text, true)", "json_decode($text)", _tells),
    Fault("data that is no JSON", "json_last_error() !== JSON_ERROR_NONE", "false",
          rules.test_data_that_is_no_json_fails_for_good),
    Fault("no data is a map", "($text === '') ? null : json", "($text === '') ? array() : json",
          rules.test_a_missing_payload_is_null),

    # ---- the run
    Fault("all tasks have one lock", "'queue-runtime.task.'.$task->getID()", "'queue-runtime.task'", _busy),
    Fault("a lock of another name", "'queue-runtime.task.'", "'queue-runtime.'", _locked),
    Fault("no lock", "      $lock->lock();\n", "", _busy),
    Fault("busy is a failure", "} catch (PhutilLockException $ex) {\n      return array('result' => 'busy');",
          "} catch (PhutilLockException $ex) {\n      throw $ex;", _busy),
    Fault("no connection for a lock is a failure",
          "return array('result' => 'busy', 'retry' => self::LOCK_TROUBLE_WAIT)", "throw $ex",
          rules.test_a_task_that_cannot_be_locked_is_not_run),
    Fault("the lock is kept", "        $lock->unlock();\n", "", _runs),
    Fault("output goes to the reply", "    ob_start(array($this, 'dropOutput'), 4096);\n", "",
          partial(rules.test_what_a_worker_prints_does_not_spoil_the_reply, way="say")),
    Fault("output that is flushed goes to the reply", "ob_start(array($this, 'dropOutput'), 4096)", "ob_start()",
          partial(rules.test_what_a_worker_prints_does_not_spoil_the_reply, way="flush")),
    Fault("one buffer is closed of many", "      if (!@ob_end_clean()) {\n        break;\n      }",
          "      @ob_end_clean();\n      break;",
          partial(rules.test_what_a_worker_prints_does_not_spoil_the_reply, way="buffer")),
    Fault("Phorge's buffer is closed too", "while (ob_get_level() > $level)", "while (ob_get_level())", _runs),
    Fault("a buffer that stays leaves its text in the reply", "      $this->leftOver += $buffer['buffer_used'];\n", "",
          partial(rules.test_a_buffer_that_cannot_be_ended_neither_stops_nor_spoils_the_reply, way="sticky buffer",
                  told=None)),
    Fault("all that is printed is kept", "'dropOutput'), 4096)", "'dropOutput'))",
          partial(rules.test_what_a_worker_prints_does_not_spoil_the_reply, way="print 64 MiB")),
    Fault("an exit leaves nothing", "    register_shutdown_function(array($this, 'didShutdown'));\n", "",
          rules.test_a_worker_that_ends_php_leaves_an_answer),
    Fault("every run ends with an exit", "    $this->isRunning = false;\n", "", _runs),
    Fault("queries are kept", "    PhutilServiceProfiler::getInstance()->enableDiscardMode();\n", "",
          rules.test_the_queries_of_a_long_run_are_not_kept_in_memory),
    Fault("a run has PHP's time limit", "$export) {\n    $this->liftTimeLimit();", "$export) {", _tells),
    Fault("a host must have the function", "if (function_exists('set_time_limit')) {", "if (true) {",
          rules.test_a_host_that_has_switched_off_the_time_limits_function_runs_tasks_all_the_same),
    Fault("a caller that hangs up ends the run", "      ignore_user_abort(true);\n", "", _tells),
    Fault("one run less", "$task->getFailureCount() > $maximum", "$task->getFailureCount() >= $maximum",
          rules.test_a_task_that_failed_too_often_is_not_run),
    Fault("no maximum", "$maximum !== null && ", "false && ", rules.test_a_task_that_failed_too_often_is_not_run),
    Fault("a yield without a least time", "max(5, (int)$ex->getDuration())", "(int)$ex->getDuration()",
          partial(rules.test_a_yield_is_at_least_five_seconds, seconds=1, told=5)),
    Fault("a PHP error ends the call", "    } catch (Throwable $ex) {\n      $result = $this->newFailure(",
          "    } catch (Exception $ex) {\n      $result = $this->newFailure(",
          rules.test_an_error_of_php_is_a_failure_and_its_trace_is_logged),
    Fault("giving up is a failure for now",
          "    } catch (PhabricatorWorkerPermanentFailureException $ex) {\n      $result =",
          "    } catch (LengthException $ex) {\n      $result =", rules.test_a_permanent_failure_has_its_reason),
    Fault("milliseconds", "(int)(1000000 *", "(int)(1000 *", rules.test_a_success_has_its_duration_in_microseconds),

    # ---- follow-ups
    Fault("follow-ups are stored here too", "    $reader = new QueueRuntimeFollowupReader(null);\n",
          "    $reader = new QueueRuntimeFollowupReader(null);\n    (clone $worker)->flushTaskQueue();\n",
          rules.test_follow_ups_are_handed_over_and_not_stored_here),
    Fault("a child without its parent's priority", "      $options += array('priority' => $task->getPriority());\n", "",
          rules.test_follow_ups_are_handed_over_and_not_stored_here),
    Fault("a stored child without its parent's priority", "flushTaskQueue(array('priority' => $task->getPriority()))",
          "flushTaskQueue()", rules.test_the_first_releases_call_works_and_stores_follow_ups_itself),
    Fault("a child without its object", "          'objectPHID' => $this->newText(idx($options, 'objectPHID')),\n", "",
          rules.test_follow_ups_are_handed_over_and_not_stored_here),
    Fault("a child without its delay", "            idx($options, 'delayUntil') ?: null),\n", "null),\n",
          rules.test_follow_ups_are_handed_over_and_not_stored_here),
    Fault("what cannot be told is found by who replies", "    phutil_json_encode($followups);\n\n", "",
          rules.test_follow_ups_that_cannot_be_told_do_not_have_the_work_done_again),
    Fault("work with lost follow-ups is done again",
          "        // The next run would fail at this again, after doing the work again.\n        phlog($ex);\n",
          "        return $this->newFailure($task, $worker, $ex);\n",
          rules.test_follow_ups_that_cannot_be_told_do_not_have_the_work_done_again),

    # ---- failures
    Fault("this failure is not counted", "getFailureCount() + 1", "getFailureCount()",
          partial(rules.test_a_failure_waits_as_its_class_says, wait="by count", told=30)),
    Fault("a class does not see what failed", "    $task->setExecutionException($ex);\n", "",
          partial(rules.test_a_failure_waits_as_its_class_says, wait="by failure", told=40)),
    Fault("a class does not see when it failed", "    $task->setFailureTime(time());\n", "",
          partial(rules.test_a_failure_waits_as_its_class_says, wait="by failure", told=40)),
    Fault("no wait is another one", "if ($retry === null) {", "if (!$retry) {",
          partial(rules.test_a_failure_waits_as_its_class_says, wait=0, told=0)),
    Fault("a class that breaks twice ends the call", "      } catch (Throwable $other) {",
          "      } catch (LengthException $other) {",
          partial(rules.test_a_failure_waits_as_its_class_says, wait="broken", told=300)),
    Fault("the trace is lost", "    phlog($ex); // the reply has no place for the trace\n", "",
          rules.test_an_error_of_php_is_a_failure_and_its_trace_is_logged),
    Fault("a reason that is no UTF-8", "phutil_utf8ize(substr($text, 0, self::MAX_REASON + 3))",
          "substr($text, 0, self::MAX_REASON + 3)", rules.test_a_reason_that_is_not_utf8_is_made_so),
    Fault("a reason is cut before it grows", "if (strlen($text) <= self::MAX_REASON) {", "if (true) {",
          partial(_cut, text=b"\xff" * 5000, kept="\ufffd" * 1329)),
    Fault("a reason ends in the middle of a character", "(ord($text[$end]) & 0xC0) === 0x80", "false",
          partial(_cut, text=b"a" * 3988 + "ä".encode(), kept="a" * 3988)),
    Fault("a reason loses the character at its end", "self::MAX_REASON + 3)", "self::MAX_REASON)",
          partial(_cut, text=b"a" * 3986 + "😀".encode(), kept="a" * 3986)),
)  # fmt: skip
"""Each is one line or two as it stands in the file."""
