# Every command a person needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What the crates with C inside need: OpenSSL is built from source (perl, make), zlib-ng with cmake.
PACKAGES := cc:build-essential c++:build-essential cmake:cmake perl:perl

# cargo-deny lives outside the project's own build: in Cargo's bin folder, built once in a folder of its own.
DENY_VERSION := 0.20.2
DENY_BUILD := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sekisho/cargo-deny

CONFIG ?= conf/sekisho.toml
MINUTES ?= 10

.PHONY: help run build test test-valkey lint fmt bench bench-fleet bench-http soak deny alerts deps clean

help: ## list these targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: build ## build it and serve CONFIG (default conf/sekisho.toml)
	$${CARGO_TARGET_DIR:-target}/release/sekisho run -c $(CONFIG)

build: deps ## the release binary: target/release/sekisho
	cargo build --release --locked

test: deps ## all tests, against throw-away Redis, PostgreSQL and Kafka of their own
	scripts/services.sh run cargo test --locked
	scripts/services.sh run --with kafka cargo test --locked --features kafka --test rules_kafka

test-valkey: deps ## the same against Valkey in place of Redis (Debian 13, or bookworm-backports)
	SEKISHO_TEST_REDIS_SERVER=valkey-server scripts/services.sh run cargo test --locked

lint: deps ## format, clippy with warnings as errors, licences and sources of the crates
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo clippy --all-targets --locked --features kafka -- -D warnings
	$(MAKE) --no-print-directory deny alerts

alerts: ## alert rules and their tests, the dashboard and its queries (promtool)
	scripts/alerts.sh

deny: ## cargo-deny: licences, bans, sources (builds cargo-deny once if it is missing)
	@cargo deny --version 2>/dev/null | grep -qxF 'cargo-deny $(DENY_VERSION)' \
		|| { CARGO_TARGET_DIR='$(DENY_BUILD)' CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
			CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
			cargo install --locked --version $(DENY_VERSION) cargo-deny; rm -rf '$(DENY_BUILD)'; }
	cargo deny --locked check licenses bans sources

fmt: ## format the code
	cargo fmt

bench: deps ## one decision, what remembering it costs, and rule look-up (criterion)
	scripts/services.sh run cargo bench --locked --bench decision --bench handover --bench rules
	@echo 'A fleet of 20 on one Redis: make bench-fleet; proxied requests per second and CPU: make bench-http'

bench-fleet: deps ## does the limit hold over 20 gateways, at what cost and latency
	scripts/services.sh run cargo bench --locked --bench fleet

bench-http: deps ## what limiting costs a proxied request (about ten minutes)
	benches/http.sh

soak: deps ## traffic while Redis fails at random, for MINUTES (default 10): limit, errors, memory, descriptors
	SEKISHO_SOAK_SECONDS=$$(( $(MINUTES) * 60 )) scripts/services.sh run cargo test --locked --test soak -- --nocapture

deps: ## install the Debian packages that building needs, if missing
	@scripts/packages.sh $(PACKAGES)

clean: ## remove everything built
	cargo clean
