"""Orders from a stream, revenue by country, and large orders back into a queue."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, expr, from_json, struct, to_json

# The driver takes the address from its environment: it is in no plan and in no catalogue.
URI = "env:RHIZOME_URI"
ORDER = "id BIGINT, country STRING, amount DOUBLE"

spark = SparkSession.active()


@dp.table(comment="Each message of the stream `orders` once")
def orders() -> DataFrame:
    messages = (
        spark.readStream.format("rhizome")
        .option("uri", URI)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = from_json(col("value").cast("string"), ORDER)
    return messages.select("offset", "timestamp", order.alias("order")).select(
        "offset", "timestamp", "order.*"
    )


@dp.materialized_view(comment="What each country has ordered")
def revenue() -> DataFrame:
    return (
        spark.read.table("orders")
        .groupBy("country")
        .agg(count("*").alias("orders"), expr("sum(amount)").alias("amount"))
    )


dp.create_sink("large_orders", "rhizome", {"uri": URI, "queue": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    return (
        spark.readStream.table("orders")
        .where("amount >= 1000")
        .select(to_json(struct("id", "country", "amount")).alias("value"))
    )
