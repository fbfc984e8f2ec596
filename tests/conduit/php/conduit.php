<?php

/**
 * Makes one request as Phorge would. The order has what is to be loaded, the
 * configuration, what is asked for, and the parameters of a call.
 */

require __DIR__.'/phorge.php';

ob_start(null, 4096); // as php.ini has it: a reply may still be taken back

function answer(array $order) {
  register_shutdown_function('harness_did_shutdown');
  ob_start(); // as Phorge does, which logs what has gone in there by the end
  $level = ob_get_level();

  foreach ($order['load'] as $file) {
    harness_include($file);
  }
  Harness::$config = $order['config'];
  $guard = new AphrontWriteGuard();

  $reply = array('result' => null, 'error_code' => null, 'error_info' => null);
  switch ($order['ask']) {
    case 'methods':
      $all = ConduitAPIMethod::loadAllConduitMethods();
      $reply['result'] = array_keys($all);
      break;
    case 'console':
      $reply['result'] = show_console();
      break;
    default:
      $reply = answer_call($order['params'], $reply);
  }

  if ($held = PhabricatorGlobalLock::held()) {
    Harness::say('STRANGE', 'still locked: '.implode(', ', $held));
  }
  if (ob_get_level() !== $level) {
    Harness::say('STRANGE', 'output is buffered '.ob_get_level().' times');
  }
  if (($output = ob_get_clean()) !== '') {
    Harness::say('STRANGE', 'unexpected output: '.$output);
  }
  return $reply;
}

function answer_call(array $params, array $reply) {
  try {
    $call = new ConduitCall('worker.execute', $params);
    $method = $call->getMethodImplementation();
    if ($method->shouldRequireAuthentication()) {
      $reply['error_code'] = 'ERR-INVALID-SESSION';
      $reply['error_info'] = 'Session key is not present.';
      return $reply;
    }
    $unguarded = $method->shouldAllowUnguardedWrites();
    if ($unguarded) {
      AphrontWriteGuard::beginUnguardedWrites();
    }
    try {
      $reply['result'] = $call->execute();
    } catch (ConduitException $ex) {
      $reply['error_code'] = $ex->getMessage();
      $reply['error_info'] = $ex->getErrorDescription()
        ? $ex->getErrorDescription()
        : $method->getErrorDescription($ex->getMessage());
    }
    if ($unguarded) {
      AphrontWriteGuard::endUnguardedWrites();
    }
  } catch (Exception $ex) {
    // an Error is not caught: it gets as far as the web server
    $reply['result'] = null;
    $reply['error_code'] = ($ex instanceof ConduitException)
      ? 'ERR-CONDUIT-CALL'
      : 'ERR-CONDUIT-CORE';
    $reply['error_info'] = $ex->getMessage();
  }
  return $reply;
}

/**
 * What the pages of the web console show: of the methods, those that are for
 * other people's programs; of each option, whether it has its value and a form.
 */
function show_console() {
  $methods = array();
  $errors = array();
  foreach (ConduitAPIMethod::loadAllConduitMethods() as $name => $method) {
    harness_text($method->getMethodDescription());
    harness_text($method->getReturnType());
    foreach ($method->getParamTypes() + $method->getErrorTypes() as $text) {
      harness_text($text);
    }
    $errors[$name] = $method->getErrorTypes();
    if (!$method->isInternalAPI()) {
      $methods[] = $name;
    }
  }
  $options = array();
  $all = PhabricatorApplicationConfigOptions::loadAllOptions();
  foreach ($all as $key => $option) {
    $options[$key] = array(
      'shown' => !$option->getHidden(),
      'editable' => !$option->getLocked(),
    );
  }
  return array(
    'methods' => $methods,
    'errors' => $errors,
    'options' => $options,
  );
}

/**
 * What Phorge says of a fatal error. Nobody else gets to say anything then.
 */
function harness_did_shutdown() {
  $error = error_get_last();
  $fatal = array(E_ERROR, E_PARSE, E_COMPILE_ERROR);
  if (!$error || !in_array($error['type'], $fatal, true)) {
    return;
  }
  while (ob_get_level()) {
    ob_end_clean();
  }
  header('Content-Type: text/plain; charset=utf-8', true, 500);
  echo ">>> UNRECOVERABLE FATAL ERROR <<<\n\n{$error['message']}\n";
  exit(1);
}
