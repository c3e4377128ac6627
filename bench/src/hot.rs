//! The suite `hot`: pages of which some are used more often than others, in a budget that holds the hot ones or nearly so.
//!
//! Counts of major faults are what it is for; they do not depend on what else the machine does, times do.

use pagetide_tests::program::Program;

use crate::contest::{self, Row};
use crate::figure::Figure;
use crate::side::{Bench, Side};
use crate::suite::{SIGNAL, THREAD};

/// Accesses to a region of four budgets, for 32,768 pages of budget.
const ACCESSES: u64 = 1_000_000;
/// How often a loop goes round.
const ROUNDS: u64 = 8;

/// All rows.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    for row in rows(bench).iter().filter(|row| bench.wants(&row.name)) {
        let sides: Vec<Side> = [Side::Kernel, THREAD, SIGNAL].into_iter().filter(|side| bench.runs_on(*side)).collect();
        figures.extend(contest::run(bench, row, &sides, None)?);
    }
    Ok(figures)
}

fn rows(bench: &Bench) -> Vec<Row> {
    let budget = bench.budget_mib * 256;
    let accesses = ACCESSES * budget / 32_768 / if bench.quick { 10 } else { 1 };
    let row = |name: String, pages: u64, accesses: u64, pattern: String, faults_most| {
        let arguments = format!("{pages} {accesses} {pattern}");
        Row {
            name,
            program: Program::new(
                std::iter::once(bench.hotload().into_os_string()).chain(arguments.split_whitespace().map(Into::into)),
            )
            .deadline_s(bench.deadline_s),
            output: None,
            budget_bytes: budget * 4096,
            faults_most,
        }
    };
    let mut rows = Vec::new();
    for (name, hot) in [("1/2", budget / 2), ("3/4", budget * 3 / 4), ("7/8", budget * 7 / 8)] {
        for share in [95, 99] {
            let pattern = format!("hot {hot} {}", share * 10);
            rows.push(row(format!("hot set of {name}, {share} %"), 4 * budget, accesses, pattern, 110));
        }
    }
    for exponent in ["0.8", "0.9", "1.0", "1.1", "1.2"] {
        rows.push(row(format!("zipf {exponent}"), 4 * budget, accesses, format!("zipf {exponent}"), 110));
    }
    for (name, pages) in
        [("1.1", budget * 11 / 10), ("1.25", budget * 5 / 4), ("1.5", budget * 3 / 2), ("2", budget * 2)]
    {
        let rounds = if bench.quick { 2 } else { ROUNDS };
        rows.push(row(format!("loop of {name} budgets"), pages, rounds * pages, "loop".to_owned(), 50));
    }
    rows
}
