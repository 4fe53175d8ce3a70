"""What operators are shown of a cluster and its groups, and previews of the changes they order.

`cluster_view_and_control` is the place to begin: it implements the two interfaces of
rhizome.management.cluster_view with the help of the others. `cluster_info` and `group_info`
describe the state, `cluster_change_preview` and `home_change_preview` say in words what a change
would do, and `copy_and_transaction_stalls` says what confirms and transactions wait for.
"""
