"""Who somebody is and what they may do: logins, passwords, access tokens, permissions, TLS, audit.

`login_service` is the place to begin: its docstring follows a login from the client's response
(`sasl_mechanisms`) to an identity. `permissions` decides what a user may touch, `token_login` and
`oauth_scopes` what the bearer of a token may. `login_throttle`, `known_login_addresses` and
`password_check_queue` hold off those who guess. `jwks_cache` has the keys of token issuers that the
server fetches. Reads keys and certificates, opens no socket.
May import broker and amqp; never cluster, management or server.
"""
