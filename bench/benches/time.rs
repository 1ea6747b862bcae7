//! Time per command. Compare figures of one run with each other; the machine's mood is in all of them.

use criterion::{Criterion, criterion_group, criterion_main};

fn rules(criterion: &mut Criterion) {
    for events in [10, 1_000, 100_000] {
        let moment = abide_bench::complete_with_history(events);
        criterion.bench_function(&format!("complete/history_{events}"), |bench| bench.iter(|| moment.decide()));
    }
    for items in [100, 10_000] {
        let moment = abide_bench::complete_one_of(items);
        criterion.bench_function(&format!("item/of_{items}"), |bench| bench.iter(|| moment.decide()));
    }
    for (name, moment) in
        [("start", abide_bench::start()), ("claim", abide_bench::claim()), ("heartbeat", abide_bench::heartbeat())]
    {
        criterion.bench_function(&format!("command/{name}"), |bench| bench.iter(|| moment.decide()));
    }
}

criterion_group!(benches, rules);
criterion_main!(benches);
