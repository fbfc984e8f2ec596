<?php

/**
 * Another class that answers to the same name, as the fork has one.
 */
final class RivalConduitAPIMethod extends ConduitAPIMethod {
  public function getAPIMethodName() {
    return 'worker.execute';
  }
  public function shouldRequireAuthentication() {
    return false;
  }
  public function getMethodDescription() {
    return 'Another one.';
  }
  protected function defineParamTypes() {
    return array();
  }
  protected function defineReturnType() {
    return 'string';
  }
  protected function execute(ConduitAPIRequest $request) {
    return 'the rival ran it';
  }
}
