#!/usr/bin/env bash
# Installs the programs of other projects that tests need: librabbitmq's amqp-tools and node with
# npm to talk to brokers, Java for Spark, chromium and its driver to look at the console. Does nothing
# where they are present, and says what is missing where it can't install them; the tests that need
# them are then skipped with the same words.
set -u
missing=()
command -v amqp-publish >/dev/null || missing+=(amqp-tools)
command -v node >/dev/null || missing+=(nodejs)
command -v npm >/dev/null || missing+=(npm)
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt-get; run: sudo apt-get install ${missing[*]})." \
         "Tests that need them will be skipped." >&2
    exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    echo "could not install ${missing[*]}; tests that need them will be skipped." >&2
