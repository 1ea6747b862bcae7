//! Instructions per command, counted under valgrind: the same on a busy machine as on a quiet one.

use abide_bench::Moment;
use abide_core::run::{Advanced, Stop};
use gungraun::{library_benchmark, library_benchmark_group, main};

#[library_benchmark]
#[bench::history_10(args = (10), setup = abide_bench::complete_with_history)]
#[bench::history_100000(args = (100_000), setup = abide_bench::complete_with_history)]
fn complete(moment: Moment) -> (Moment, Result<Advanced, Stop>) {
    let decided = moment.decide();
    (moment, decided)
}

#[library_benchmark]
#[bench::of_100(args = (100), setup = abide_bench::complete_one_of)]
#[bench::of_10000(args = (10_000), setup = abide_bench::complete_one_of)]
fn item(moment: Moment) -> (Moment, Result<Advanced, Stop>) {
    let decided = moment.decide();
    (moment, decided)
}

#[library_benchmark]
#[bench::start(abide_bench::start())]
#[bench::claim(abide_bench::claim())]
#[bench::heartbeat(abide_bench::heartbeat())]
fn command(moment: Moment) -> (Moment, Result<Advanced, Stop>) {
    let decided = moment.decide();
    (moment, decided)
}

library_benchmark_group!(name = rules; benchmarks = complete, item, command);
main!(library_benchmark_groups = rules);
