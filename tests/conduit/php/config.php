<?php

/**
 * Stand-ins for Phorge's options: who declares them, what they may be, what
 * the console shows of them, and how they are read.
 */

abstract class PhabricatorApplication extends Phobject {}

final class PhabricatorDaemonsApplication extends PhabricatorApplication {}

final class PhabricatorConfigOption extends Phobject {
  private $key;
  private $type;
  private $default;
  private $hidden = false;
  private $locked = false;
  private $description;
  public function __construct($key, $type, $default) {
    $this->key = $key;
    $this->type = $type;
    $this->default = $default;
  }
  public function getKey() {
    return $this->key;
  }
  public function getDefault() {
    return $this->default;
  }
  public function setHidden($hidden) {
    $this->hidden = $hidden;
    return $this;
  }
  public function getHidden() {
    return (bool)$this->hidden;
  }
  public function setLocked($locked) {
    $this->locked = $locked;
    return $this;
  }
  public function getLocked() {
    return $this->locked || $this->hidden;
  }
  public function setDescription($description) {
    $this->description = $description;
    return $this;
  }
  public function getDescription() {
    return $this->description;
  }
  public function validate($value) {
    if ($value === null) {
      return;
    }
    switch ($this->type) {
      case 'string':
        $fits = is_string($value);
        break;
      case 'int':
        $fits = is_int($value);
        break;
      case 'list<string>':
        $fits = is_array($value) &&
          array_values($value) === $value &&
          array_filter($value, 'is_string') === $value;
        break;
      default:
        throw new Exception(
          "Unknown configuration option type \"{$this->type}\".");
    }
    if (!$fits) {
      throw new Exception("Option {$this->key} is not a {$this->type}.");
    }
  }
}

abstract class PhabricatorApplicationConfigOptions extends Phobject {

  abstract public function getName();
  abstract public function getDescription();
  abstract public function getGroup();
  abstract public function getOptions();

  public function getApplicationClassName() {
    phlog(get_class($this).' must implement getApplicationClassName().');
    return PhabricatorDaemonsApplication::class;
  }

  public function getKey() {
    return strtolower(get_class($this));
  }

  final protected function newOption($key, $type, $default) {
    return new PhabricatorConfigOption($key, $type, $default);
  }

  final public static function loadAllOptions() {
    $options = array();
    foreach (harness_subclasses(self::class) as $group) {
      if (!in_array($group->getGroup(), array('core', 'apps'), true)) {
        throw new Exception("There is no group {$group->getGroup()}.");
      }
      $application = $group->getApplicationClassName();
      if (!is_subclass_of($application, PhabricatorApplication::class)) {
        throw new Exception("{$application} is no application.");
      }
      harness_text($group->getName());
      harness_text($group->getDescription());
      foreach ($group->getOptions() as $option) {
        $key = $option->getKey();
        if (isset($options[$key])) {
          throw new Exception("Two options are named '{$key}'!");
        }
        $option->validate($option->getDefault());
        $options[$key] = $option;
      }
    }
    return $options;
  }
}

/**
 * Options that Phorge has by itself.
 */
final class StandInConfigOptions extends PhabricatorApplicationConfigOptions {
  public function getName() {
    return 'Core';
  }
  public function getDescription() {
    return 'Options that are there.';
  }
  public function getGroup() {
    return 'core';
  }
  public function getApplicationClassName() {
    return PhabricatorDaemonsApplication::class;
  }
  public function getOptions() {
    return array(
      $this->newOption('storage.default-namespace', 'string', 'phabricator'),
      $this->newOption('phd.taskmasters', 'int', 4),
    );
  }
}

final class PhabricatorEnv extends Phobject {
  private static $values;
  public static function getEnvConfig($key) {
    if (Harness::$config === null) {
      // the files of src/extensions are included before
      throw new Exception("Trying to read \"{$key}\" before there is any.");
    }
    if (self::$values === null) {
      self::$values = array();
      $options = PhabricatorApplicationConfigOptions::loadAllOptions();
      foreach ($options as $name => $option) {
        $value = idx(Harness::$config, $name, $option->getDefault());
        $option->validate($value);
        self::$values[$name] = $value;
      }
    }
    if (!array_key_exists($key, self::$values)) {
      throw new Exception("No config value specified for key '{$key}'.");
    }
    return self::$values[$key];
  }
}

/**
 * One object of each class that can be made and extends this one.
 */
function harness_subclasses($ancestor) {
  $objects = array();
  foreach (get_declared_classes() as $class) {
    $reflection = new ReflectionClass($class);
    if (is_subclass_of($class, $ancestor) && $reflection->isInstantiable()) {
      $objects[] = newv($class, array());
    }
  }
  return $objects;
}

/**
 * Pages are made of text.
 */
function harness_text($text) {
  if (!is_string($text) || $text === '') {
    throw new Exception('This is no text: '.json_encode($text));
  }
  return $text;
}
