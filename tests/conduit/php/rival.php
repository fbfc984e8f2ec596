<?php

/**
 * Another class that answers to the same name, as the fork has one.
 */
final class RivalConduitAPIMethod extends ConduitAPIMethod {
  public function getAPIMethodName() {
    return 'worker.execute';
  }
  public function getMethodDescription() {
    return '';
  }
  protected function defineParamTypes() {
    return array();
  }
  protected function defineReturnType() {
    return '';
  }
  protected function execute(ConduitAPIRequest $request) {
    return 'the rival ran it';
  }
}
