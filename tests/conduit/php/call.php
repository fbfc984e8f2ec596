<?php

/**
 * One request of the order on stdin; prints the reply.
 */

require __DIR__.'/conduit.php';

$order = json_decode(stream_get_contents(STDIN), true);
echo phutil_json_encode(answer($order));
