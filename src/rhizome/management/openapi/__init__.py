"""The description of the HTTP API: the schemas of requests and responses, and the OpenAPI document.

Begin with `endpoint_shapes`, the words in which schemas are written. `request_schemas` has the
bodies that endpoints take; `rabbitmq_schemas` and `rhizome_schemas` what the two API packages
answer.
`openapi_document` makes /api/openapi.json from them and from the table of endpoints.
"""
