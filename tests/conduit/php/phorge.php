<?php

/**
 * Stand-ins for the parts of Phorge that the extension touches, as small as
 * they can be and as strict as the real ones: what no Phorge would run is not
 * run here either. (Facts: a reading of Phorge as of August 2026.)
 */

require __DIR__.'/library.php';
require __DIR__.'/config.php';
require __DIR__.'/storage.php';
require __DIR__.'/queue.php';
require __DIR__.'/method.php';
