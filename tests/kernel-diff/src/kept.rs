//! The kernel's runs, kept in a directory: a long comparison can be made in pieces, and the simulator compared with the
//! same runs again after a change of it.
//!
//! A row's file names its set-up; if that is another by now, the row is measured again.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::kernel::{Measured, Phases};
use crate::rows::Row;

/// Such a directory.
#[derive(Debug)]
pub(crate) struct Kept {
    directory: PathBuf,
}

impl Kept {
    /// Makes it if it is not there.
    pub(crate) fn new(directory: &str) -> Result<Self, String> {
        fs::create_dir_all(directory).map_err(|e| format!("{directory}: {e}"))?;
        Ok(Self { directory: PathBuf::from(directory) })
    }

    /// Where the recorded program's trace is kept.
    pub(crate) fn trace(&self) -> PathBuf {
        self.directory.join("trace")
    }

    fn file(&self, row: &Row) -> PathBuf {
        self.directory.join(format!("{}.json", row.name.replace('/', "_")))
    }

    /// The runs of a row of this set-up, if they were kept.
    pub(crate) fn load(&self, row: &Row) -> Result<Option<Measured>, String> {
        let path = self.file(row);
        if !path.exists() {
            return Ok(None);
        }
        let read = |path: &Path| -> Result<Value, String> {
            let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
            serde_json::from_str(&text).map_err(|e| e.to_string())
        };
        let value = read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if value["setup"] != json!(row.setup()) {
            return Ok(None);
        }
        let measured = || -> Option<Measured> {
            let disturbed = usize::try_from(value["disturbed"].as_u64()?).ok()?;
            let runs = value["runs"].as_array()?.iter().map(phases).collect::<Option<Vec<Phases>>>()?;
            Some(Measured { runs, disturbed })
        };
        measured().map(Some).ok_or_else(|| format!("{} is not a row's runs", path.display()))
    }

    /// Keeps the runs of a row.
    pub(crate) fn save(&self, row: &Row, measured: &Measured) -> Result<(), String> {
        let runs: Vec<Value> = measured.runs.iter().map(|run| json!(run)).collect();
        let value = json!({"setup": row.setup(), "disturbed": measured.disturbed, "runs": runs});
        let path = self.file(row);
        fs::write(&path, value.to_string()).map_err(|e| format!("{}: {e}", path.display()))
    }
}

fn phases(run: &Value) -> Option<Phases> {
    let phase = |pair: &Value| {
        let counters = pair[1].as_object()?.iter().map(|(name, n)| Some((name.clone(), n.as_u64()?)));
        Some((pair[0].as_str()?.to_owned(), counters.collect::<Option<_>>()?))
    };
    run.as_array()?.iter().map(phase).collect()
}
