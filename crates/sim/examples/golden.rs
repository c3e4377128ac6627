use pagetide_sim::script::*;
fn main() {
    let names = [
        "pswpin",
        "pswpout",
        "pgscan_anon",
        "pgsteal_anon",
        "pgactivate",
        "pgdeactivate",
        "pgmajfault",
        "swap_ra",
        "swap_ra_hit",
        "workingset_refault_anon",
        "workingset_activate_anon",
    ];
    let rows: &[(&str, usize, &[&str], [u64; 11])] = &[
        ("w", 0, &[], [16, 16651, 65481, 16529, 1, 0, 9, 7, 4, 0, 0]),
        ("w r", 1, &[], [32787, 16149, 79131, 32784, 1, 0, 4113, 28674, 28671, 32785, 0]),
        ("w r w", 2, &[], [32782, 17040, 81387, 32781, 0, 0, 4110, 28672, 28670, 32771, 0]),
        ("w r w r", 3, &[], [32781, 15740, 79468, 32800, 0, 0, 4110, 28671, 28670, 32790, 0]),
        ("w r r", 2, &[], [32781, 6, 65381, 32782, 0, 0, 4110, 28671, 28670, 32769, 0]),
        ("w b", 1, &[], [16551, 5708, 50483, 16561, 16013, 16022, 2083, 14468, 14464, 16533, 0]),
        ("w s", 1, &[], [16566, 16011, 33527, 16548, 2, 14044, 16179, 387, 130, 16560, 14083]),
        ("w R40000", 1, &[], [20321, 11685, 58564, 20276, 7388, 0, 20263, 58, 14, 20332, 15]),
        ("w r", 1, &["page-cluster=5"], [32775, 16078, 80215, 32744, 1, 0, 1036, 31739, 31736, 32795, 0]),
        ("w r", 1, &["page-cluster=0"], [32784, 16186, 81430, 32720, 64, 0, 32784, 0, 0, 32810, 0]),
        ("w r", 1, &["readahead=cluster"], [32797, 16019, 77828, 32794, 1, 0, 4120, 28677, 28664, 32819, 0]),
        ("w R40000", 1, &["readahead=cluster"], [20291, 11802, 55854, 20216, 7339, 0, 20281, 10, 5, 20273, 901]),
    ];
    println!("{:28} {}", "", names.map(|n| format!("{:>15}", &n[..n.len().min(15)])).join(""));
    for (script, phase, settings, want) in rows {
        let mut spec = ScriptSpec::new(script, 32768, 16384, "linux-6.18");
        spec.settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let result = match run_script(&spec) {
            Ok(r) => r,
            Err(e) => {
                println!("{script}: {e}");
                continue;
            }
        };
        let got = &result[*phase];
        println!("{:28} {}", format!("{script} {settings:?} kernel"), want.map(|n| format!("{n:>15}")).join(""));
        println!("{:28} {}", "   ours", names.map(|n| format!("{:>15}", got.get(n))).join(""));
        let bad: String = names
            .iter()
            .zip(want)
            .map(|(n, w)| {
                let g = got.get(n);
                let d = g.abs_diff(*w);
                let ok = d <= 40 || d * 100 <= 3 * w;
                format!(
                    "{:>15}",
                    if ok {
                        "ok".into()
                    } else {
                        format!("{:+.1}%", (g as f64 - *w as f64) * 100.0 / (*w as f64).max(1.0))
                    }
                )
            })
            .collect();
        println!("{:28} {bad}", "");
        let mut calls = got.reclaim_calls.clone();
        calls.sort_by_key(|c| std::cmp::Reverse(c.1));
        calls.truncate(5);
        println!("      calls {calls:?} rotated {} elapsed {}ms", got.get("pgrotated"), got.elapsed_ns / 1000000);
    }
}
