"""`rhizome bench`: loads a broker from several processes and measures throughput and latency.

bench_command.py starts the processes and prints; load_generator.py is what each of them runs;
bench_statistics.py has counts and the histogram of latencies. Uses rhizome.client only.
"""
