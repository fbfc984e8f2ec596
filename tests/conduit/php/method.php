<?php

/**
 * Stand-ins for Conduit's methods, and for what makes a call of one.
 */

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

final class ConduitAPIRequest extends Phobject {
  private $params;
  public function __construct(array $params) {
    $this->params = $params;
  }
  public function getAllParameters() {
    return $this->params;
  }
}

abstract class ConduitAPIMethod extends Phobject {

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
  public function getParamTypes() {
    return $this->defineParamTypes();
  }
  public function getReturnType() {
    return $this->defineReturnType();
  }
  public function getErrorTypes() {
    return $this->defineErrorTypes();
  }
  public function getErrorDescription($code) {
    return idx($this->getErrorTypes(), $code, 'Unknown Error');
  }
  public function executeMethod(ConduitAPIRequest $request) {
    return $this->execute($request);
  }

  public static function loadAllConduitMethods() {
    $methods = array();
    foreach (harness_subclasses(self::class) as $method) {
      $name = $method->getAPIMethodName();
      if (isset($methods[$name])) {
        throw new Exception("Two objects returned the same key {$name}");
      }
      list($application, $rest) = explode('.', $name, 2); // lists are sorted so
      $methods[$name] = $method;
    }
    return $methods;
  }
}

/**
 * What many methods of Phorge's have in common, and no method itself.
 */
abstract class StandInQueryConduitAPIMethod extends ConduitAPIMethod {}

/**
 * One call. Raises ConduitException for parameters that the method does not
 * have, and for a method that does not exist.
 */
final class ConduitCall extends Phobject {
  private $method;
  private $request;

  public function __construct($name, array $params) {
    $this->method = idx(ConduitAPIMethod::loadAllConduitMethods(), $name);
    if (!$this->method) {
      throw new ConduitException(
        "Conduit API method \"{$name}\" does not exist.");
    }
    $types = $this->method->getParamTypes();
    foreach ($types as $key => $type) {
      $reserved = array(
        'access_token',
        'scope',
        'output',
        '__conduit__',
        'code',
        'params',
      );
      if (in_array($key, $reserved, true) || !strncmp($key, 'api.', 4)) {
        throw new ConduitException("The parameter \"{$key}\" is reserved.");
      }
    }
    if ($unknown = array_diff_key($params, $types)) {
      $names = implode("', '", array_keys($unknown));
      throw new ConduitException(
        "API Method \"{$name}\" does not define these parameters: '{$names}'.");
    }
    $this->request = new ConduitAPIRequest($params);
  }

  public function getMethodImplementation() {
    return $this->method;
  }

  public function execute() {
    $profiler = PhutilServiceProfiler::getInstance();
    $id = $profiler->beginServiceCall(array('type' => 'conduit'));
    try {
      return $this->method->executeMethod($this->request);
    } finally {
      $profiler->endServiceCall($id, array());
    }
  }
}
