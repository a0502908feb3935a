//! Rule look-up: what every request pays before its bucket is asked.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion};
use sekisho::bucket::Limit;
use sekisho::rules::{ANY, Mode, Rule, RuleSet};

const ROUTES: [&str; 4] = ["create-order", "list-orders", "export", "search"];

fn rule(tenant: Arc<str>, route: Arc<str>) -> Option<Rule> {
    Some(Rule {
        tenant_id: tenant,
        route_id: route,
        limit: Limit::new(200, 100.0).ok()?,
        cost: NonZeroU32::new(1),
        on_store_failure: None,
        shards: 1,
        mode: Mode::Enforce,
        enabled: true,
        comment: None,
    })
}

/// So many tenants with a rule for each of the four routes, and two wildcard rules.
fn set(tenants: usize) -> Option<RuleSet> {
    let routes = ROUTES.map(Arc::<str>::from);
    let named = (0..tenants).flat_map(|tenant| {
        let tenant: Arc<str> = format!("tenant-{tenant:06}").into();
        routes.clone().into_iter().filter_map(move |route| rule(Arc::clone(&tenant), route))
    });
    let wildcards = [rule("tenant-000001".into(), ANY.into()), rule(ANY.into(), "create-order".into())];
    Some(RuleSet::new(Arc::new(rule(ANY.into(), ANY.into())?), named.chain(wildcards.into_iter().flatten())))
}

fn look_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rules/resolve");
    for tenants in [10, 100_000] {
        let Some(set) = set(tenants) else { return };
        // A different tenant each time, so that the processor's cache is as cold as it is in service.
        let names: Vec<String> = (0..tenants).map(|tenant| format!("tenant-{:06}", tenant * 7919 % tenants)).collect();
        let mut each = names.iter().cycle();
        group.bench_function(BenchmarkId::new("exact", tenants * 4), |bencher| {
            bencher.iter(|| each.next().map(|tenant| set.resolve(black_box(tenant), "export").enforce.limit));
        });
        for (case, tenant, route) in [
            ("one_tenant", "tenant-000001", "export"),
            ("tenant_wildcard", "tenant-000001", "unknown-route"),
            ("route_wildcard", "unknown-tenant", "create-order"),
            ("default", "unknown-tenant", "unknown-route"),
        ] {
            group.bench_function(BenchmarkId::new(case, tenants * 4), |bencher| {
                bencher.iter(|| set.resolve(black_box(tenant), black_box(route)).enforce.limit);
            });
        }
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    look_up(&mut criterion);
    criterion.final_summary();
}
