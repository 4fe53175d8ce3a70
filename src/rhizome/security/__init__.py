"""Users, permissions, password hashes and the mechanisms by which a connection proves who it is."""
