<?php

/**
 * Stand-ins for what Phorge's own library gives to every class: functions, the
 * base of all objects, the profiler, and how a file is included.
 */

final class Harness {
  public static $config = null;
  public static function say($mark, $text = '') {
    fwrite(STDERR, rtrim($mark.' '.$text)."\n");
  }
}

/**
 * Nothing may be printed, warned of or returned by an extension: each of them
 * stops the whole site, or spoils every reply.
 */
function harness_include($path) {
  $before = error_get_last();
  $level = error_reporting(E_ERROR | E_COMPILE_ERROR);
  ob_start();
  $okay = include_once $path;
  $printed = ob_get_clean();
  error_reporting($level);
  if (!$okay) {
    throw new Exception("Source file \"{$path}\" failed to load.");
  }
  $after = error_get_last();
  if ($after !== null && $after !== $before) {
    throw new Exception(
      "Error while loading file \"{$path}\": {$after['message']}");
  }
  if ($printed !== '') {
    throw new Exception("The file \"{$path}\" prints: {$printed}");
  }
}

// The tests switch PHP's own off, to see that it is the one that is used. What
// it is for, equal time for every wrong token, cannot be seen from outside.
if (!function_exists('hash_equals')) {
  function hash_equals(string $known, string $given) {
    Harness::say('COMPARED');
    return $known === $given;
  }
}

function idx(array $map, $key, $default = null) {
  return array_key_exists($key, $map) ? $map[$key] : $default;
}

function id($value) {
  return $value;
}

function coalesce(...$values) {
  foreach ($values as $value) {
    if ($value !== null) {
      return $value;
    }
  }
  return null;
}

function pht($text, ...$arguments) {
  return vsprintf($text, $arguments);
}

function phlog($what) {
  if ($what instanceof Throwable) {
    Harness::say('LOG', get_class($what).': '.$what->getMessage());
  } else {
    Harness::say('STRANGE', $what);
  }
}

function newv($class, array $arguments) {
  $reflection = new ReflectionClass($class);
  return $reflection->newInstanceArgs($arguments);
}

/**
 * Three bytes in place of each one that is none of UTF-8.
 */
function phutil_utf8ize($text) {
  if (preg_match('//u', $text)) {
    return $text;
  }
  $good = '[\x01-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|'.
    '[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|'.
    '\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|'.
    '\xf4[\x80-\x8f][\x80-\xbf]{2}';
  return preg_replace_callback(
    "/({$good})|[\\x00-\\xff]/",
    function (array $found) {
      return isset($found[1]) ? $found[1] : "\u{fffd}";
    },
    $text);
}

function phutil_json_encode($value) {
  $text = json_encode($value);
  if ($text === false) {
    throw new Exception('Failed to JSON encode value: '.json_last_error_msg());
  }
  return $text;
}

/**
 * The base of nearly all classes: no undeclared properties, and no foreach.
 */
abstract class Phobject implements IteratorAggregate {
  public function __get($name) {
    throw new DomainException("Attempt to read from undeclared {$name}.");
  }
  public function __set($name, $value) {
    throw new DomainException("Attempt to write to undeclared {$name}.");
  }
  #[\ReturnTypeWillChange]
  public function getIterator() {
    throw new DomainException('Attempting to iterate an object.');
  }
}

/**
 * Keeps every query and other call of the request in memory, until it is told
 * not to.
 */
final class PhutilServiceProfiler extends Phobject {
  private static $instance;
  private $events = array();
  private $size = 0;
  private $discard = false;
  private function __construct() {}
  public static function getInstance() {
    if (!self::$instance) {
      self::$instance = new self();
    }
    return self::$instance;
  }
  public function enableDiscardMode() {
    $this->discard = true;
  }
  public function beginServiceCall(array $data) {
    $this->events[$this->size] = $data;
    return $this->size++;
  }
  public function endServiceCall($id, array $data) {
    $this->events[$id] += $data;
    if ($this->discard) {
      unset($this->events[$id]);
    }
  }
  public function getServiceCallLog() {
    return $this->events;
  }
}

final class AphrontRequest extends Phobject {
  public static function getHTTPHeader($name, $default = null) {
    $name = 'HTTP_'.strtoupper(str_replace('-', '_', $name));
    return idx($_SERVER, $name, $default);
  }
}
