"""The issuers of access tokens, seen from here: their keys are fetched beside the logins.

`jwks_fetch` is the place to begin: it starts a thread when the keys of an issuer are due, and hands
over what the thread brings. `https_json_document` gets one document, within limits of time and
size. What is done with the keys is in `rhizome.security`. May import security and listen_sockets.
"""
