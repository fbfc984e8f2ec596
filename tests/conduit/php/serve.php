<?php

/**
 * The same over HTTP, for PHP's built-in web server. The order stands in the
 * file that HARNESS_ORDER names, the parameters in the form as Conduit has it.
 */

// Only the command line has these.
define('STDERR', fopen('php://stderr', 'w'));

require __DIR__.'/conduit.php';

if (!$_POST && idx($_SERVER, 'CONTENT_LENGTH')) {
  // What Phorge says when PHP has thrown the form away.
  http_response_code(500);
  header('Content-Type: text/plain');
  echo ">>> UNRECOVERABLE FATAL ERROR <<<\n\nIt exceeds the 'post_max_size'.";
  return;
}

$order = json_decode(file_get_contents(getenv('HARNESS_ORDER')), true);
$order['ask'] = 'call';
$order['params'] = json_decode($_POST['params'], true);
unset($order['params']['__conduit__']);
header('Content-Type: application/json');
echo phutil_json_encode(answer($order));
