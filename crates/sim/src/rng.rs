//! The generators of random numbers, named and pinned: a seed means the same run for ever.

/// Xorshift with the shifts 13, 7, 17: the generator of the script language (design, section 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorShift64 {
    state: u64,
}

/// The seed of the script language.
pub const SCRIPT_SEED: u64 = 88_172_645_463_325_252;

impl XorShift64 {
    /// A generator; a zero seed, which would stay zero, becomes the script seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: if seed == 0 { SCRIPT_SEED } else { seed } }
    }

    /// A generator for stream `stream` of a run: streams of one seed have nothing visible in common.
    pub const fn stream(seed: u64, stream: u64) -> Self {
        // The finaliser of splitmix64: neighbouring seeds and streams become unrelated states.
        let mut z = seed.wrapping_add(stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self::new(z ^ z >> 31)
    }

    /// The next number, never 0.
    pub const fn draw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// A number below `bound`; 0 for a bound of 0. The bias is below `bound` / 2^32.
    pub const fn below(&mut self, bound: u32) -> u32 {
        let high = self.draw() >> 32;
        ((high * bound as u64) >> 32) as u32
    }

    /// True in `bp` of 10,000 cases.
    pub const fn chance_bp(&mut self, bp: u32) -> bool {
        self.below(10_000) < bp
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.draw() >> 32).unwrap_or(u32::MAX)) / 4_294_967_296.0
    }
}

/// Ranks 0..n with probability proportional to 1 / (rank + 1)^exponent, by rejection from the integral of the density
/// (Hoermann and Derflinger 1996): no table, the same cost for every n.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    low: f64,
    span: f64,
    cut: f64,
}

impl Zipf {
    /// Over `n` ranks, at least one.
    pub fn new(n: u32, exponent: f64) -> Self {
        let mut this = Self { n: f64::from(n.max(1)), exponent, low: 0.0, span: 0.0, cut: 0.0 };
        this.low = this.integral(1.5) - 1.0;
        this.span = this.integral(this.n + 0.5) - this.low;
        this.cut = 2.0 - this.integral_inverse(this.integral(2.5) - this.density(2.0));
        this
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the density, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let e = (1.0 - self.exponent) * log;
        if e.abs() < 1e-9 { log } else { e.exp_m1() / (1.0 - self.exponent) }
    }

    fn integral_inverse(&self, y: f64) -> f64 {
        let t = y * (1.0 - self.exponent);
        if t.abs() < 1e-9 { y.exp() } else { (t.max(-1.0).ln_1p() / (1.0 - self.exponent)).exp() }
    }

    /// The next rank.
    pub fn draw(&self, rng: &mut XorShift64) -> u32 {
        // Rejection accepts nearly always; the bound keeps the loop finite whatever the numbers are.
        for _ in 0..1000 {
            let u = self.low + rng.unit() * self.span;
            let x = self.integral_inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.cut || u >= self.integral(k + 0.5) - self.density(k) {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "k is a whole number in 1..=n, and n is a u32"
                )]
                return k as u32 - 1;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_generator_is_the_one_of_the_golden_rows() {
        let mut rng = XorShift64::new(SCRIPT_SEED);
        assert_eq!(rng.draw(), 8_748_534_153_485_358_512);
        assert_eq!(rng.draw(), 3_040_900_993_826_735_515);
    }

    #[test]
    fn zipf_ranks_have_the_shares_of_the_law() {
        for exponent in [0.8, 1.0, 1.2] {
            let n = 1000u32;
            let zipf = Zipf::new(n, exponent);
            let mut rng = XorShift64::stream(1, 2);
            let mut counts = vec![0u32; n as usize];
            let draws = 400_000u32;
            for _ in 0..draws {
                counts[zipf.draw(&mut rng) as usize] += 1;
            }
            let norm: f64 = (1..=n).map(|k| f64::from(k).powf(-exponent)).sum();
            for rank in [0u32, 1, 9, 99] {
                let want = f64::from(draws) * f64::from(rank + 1).powf(-exponent) / norm;
                let got = f64::from(counts[rank as usize]);
                assert!((got - want).abs() < 6.0 * want.sqrt() + 1.0, "s={exponent} rank {rank}: {got} of {want}");
            }
        }
    }
}
