//! Latencies by size, in buckets 1/16 of an octave wide: percentiles within 6 %, in one fixed table.

/// Buckets of one octave.
const SUB: u32 = 16;
const SUB_BITS: u32 = 4;
/// Octaves of a 64-bit number above the exact ones.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB as usize;

/// A histogram of nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Histogram {
    fn bucket(value: u64) -> usize {
        let octave = value.max(1).ilog2();
        let index = if octave < SUB_BITS {
            value
        } else {
            u64::from((octave - SUB_BITS + 1) * SUB) + (value >> (octave - SUB_BITS)) - u64::from(SUB)
        };
        usize::try_from(index).unwrap_or(BUCKETS - 1)
    }

    /// The lowest value of a bucket.
    fn floor_of(bucket: usize) -> u64 {
        let (row, sub) = (bucket as u64 / u64::from(SUB), bucket as u64 % u64::from(SUB));
        if row == 0 { sub } else { (u64::from(SUB) + sub) << (row - 1) }
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts `n` equal values.
    pub fn record_n(&mut self, value: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.counts[Self::bucket(value)] += n;
        self.total += n;
        self.sum += u128::from(value) * u128::from(n);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds what another histogram has counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Values counted.
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// Mean, 0 if nothing was counted.
    pub fn mean(&self) -> u64 {
        u64::try_from(self.sum / u128::from(self.total.max(1))).unwrap_or(u64::MAX)
    }

    /// Least value, 0 if nothing was counted.
    pub const fn min(&self) -> u64 {
        if self.total == 0 { 0 } else { self.min }
    }

    /// Greatest value.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The value that `percent` of all values do not exceed.
    pub fn percentile(&self, percent: u64) -> u64 {
        let want = (u128::from(self.total) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= want {
                return Self::floor_of(bucket).clamp(self.min(), self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_numbers() {
        for bucket in 1..BUCKETS - 1 {
            let floor = Histogram::floor_of(bucket);
            assert_eq!(Histogram::bucket(floor), bucket, "floor {floor}");
            assert_eq!(Histogram::bucket(floor - 1), bucket - 1, "below {floor}");
        }
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_a_bucket() {
        let mut h = Histogram::default();
        for value in 1..=100_000u64 {
            h.record(value);
        }
        for percent in [1u64, 50, 90, 99] {
            let (got, want) = (h.percentile(percent), percent * 1000);
            assert!(got <= want && got * 17 >= want * 16, "p{percent}: {got}");
        }
        assert_eq!((h.min(), h.max(), h.mean(), h.count()), (1, 100_000, 50_000, 100_000));
    }
}
