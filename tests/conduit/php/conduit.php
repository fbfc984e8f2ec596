<?php

/**
 * Makes one call as Conduit would. The order has what is to be loaded, the
 * configuration, and the parameters of the call; null asks for the methods.
 */

require __DIR__.'/phorge.php';

function answer_call(array $order) {
  Harness::$config = $order['config'];
  foreach ($order['load'] as $file) {
    require $file;
  }

  $methods = array();
  foreach (get_declared_classes() as $class) {
    if (is_subclass_of($class, 'ConduitAPIMethod')) {
      $method = new $class();
      $name = $method->getAPIMethodName();
      if (isset($methods[$name])) {
        throw new Exception("Two objects returned the same key {$name}");
      }
      $methods[$name] = $method;
    }
  }

  $reply = array('result' => null, 'error_code' => null, 'error_info' => null);
  if ($order['params'] === null) {
    $reply['result'] = array_keys($methods);
    return $reply;
  }

  $method = $methods['worker.execute'];
  try {
    $reply['result'] = $method->call($order['params']);
  } catch (ConduitException $ex) {
    $reply['error_code'] = $ex->getMessage();
    $reply['error_info'] = coalesce(
      $ex->getErrorDescription(),
      $method->describeError($ex->getMessage()));
  } catch (Exception $ex) {
    $reply['error_code'] = 'ERR-CONDUIT-CORE';
    $reply['error_info'] = $ex->getMessage();
  }
  return $reply;
}
