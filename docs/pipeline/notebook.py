# %% [markdown]
# # Which queue keeps its messages waiting?
#
# A notebook as plain Python: editors and Jupytext show the cells. It needs a broker on this machine
# and its data directory, and runs as it is written; it is a test of the project.

# %%
from pyspark.sql import functions as F  # noqa: N812

import rhizome.spark
from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.spark.session import local_session

uri = "amqp://guest:guest@127.0.0.1:5672/"
data = "data"
spark = local_session("notebook")
rhizome.spark.register(spark)

# %% [markdown]
# Some traffic: two queues get the same orders, and only one of them is worked on to its end.

# %%
with Connection(uri) as connection:
    channel = connection.channel(confirms=True)
    channel.declare_exchange("sales", "fanout", durable=True)
    for queue in ("sales.invoices", "sales.parcels"):
        channel.declare_queue(queue, durable=True)
        channel.bind_queue(queue, "sales")
    orders = [b"order %d" % number for number in range(300)]
    channel.publish_many(orders, exchange="sales", properties=Properties(delivery_mode=2))
    for queue, taken in (("sales.invoices", 300), ("sales.parcels", 120)):
        for _ in range(taken):
            channel.get(queue).ack()

# %% [markdown]
# The journal knows when each message came and went. One row per message and queue:

# %%
journal = spark.read.format("rhizome.journal").load(data).where("queue LIKE 'sales.%'")
came = journal.where("event = 'enqueued'").select("queue", "index", F.col("time").alias("came"))
went = journal.where("event = 'dequeued'").select("queue", "index", F.col("time").alias("went"))
stays = came.join(went, ["queue", "index"], "left").withColumn(
    "seconds", F.col("went").cast("double") - F.col("came").cast("double")
)

# %%
waiting = (
    stays.groupBy("queue")
    .agg(
        F.count("*").alias("messages"),
        F.count("went").alias("done"),
        F.round(F.percentile_approx("seconds", 0.5), 3).alias("median_s"),
        F.round(F.max("seconds"), 3).alias("longest_s"),
    )
    .orderBy("queue")
)
waiting.show()

# %%
rows = {row["queue"]: row for row in waiting.collect()}
assert rows["sales.invoices"]["messages"] == rows["sales.parcels"]["messages"] == 300
assert rows["sales.invoices"]["done"] == 300
assert rows["sales.parcels"]["done"] == 120
assert rows["sales.invoices"]["longest_s"] >= 0

# %% [markdown]
# What is still there, oldest first: candidates for a second consumer.

# %%
left = stays.where("went IS NULL").orderBy("came", "index")
left.show(5)
assert left.count() == 180
spark.stop()
