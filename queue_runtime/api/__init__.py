"""The HTTP faces: one file per face; app.py assembles them."""
