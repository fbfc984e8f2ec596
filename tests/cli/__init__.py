"""Settings, commands and set-up, as the person who runs the service meets them."""
