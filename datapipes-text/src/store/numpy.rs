//! The random numbers of NumPy's `RandomState`: the Mersenne Twister MT19937, and the shuffle that
//! draws from it.

/// Numbers of the state.
const LEN: usize = 624;
/// Distance of the numbers that are combined.
const MIDDLE: usize = 397;

/// A generator with the numbers of `numpy.random.RandomState(seed)`.
pub(super) struct RandomState {
    state: [u32; LEN],
    used: usize,
}

impl RandomState {
    pub fn new(seed: u32) -> RandomState {
        let mut state = [seed; LEN];
        for at in 1..LEN {
            let before = state[at - 1];
            state[at] = (before ^ (before >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(at as u32);
        }
        RandomState { state, used: LEN }
    }

    fn next(&mut self) -> u32 {
        if self.used == LEN {
            for at in 0..LEN {
                let joined =
                    (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % LEN] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + MIDDLE) % LEN] ^ (joined >> 1) ^ odd;
            }
            self.used = 0;
        }
        let mut number = self.state[self.used];
        self.used += 1;
        number ^= number >> 11;
        number ^= (number << 7) & 0x9d2c_5680;
        number ^= (number << 15) & 0xefc6_0000;
        number ^ (number >> 18)
    }

    /// Draws a number from 0 to `most`: numbers of as few bits as `most` has, until one is not above
    /// it.
    fn up_to(&mut self, most: u32) -> u32 {
        let mask = u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let number = self.next() & mask;
            if number <= most {
                return number;
            }
        }
    }

    /// Shuffles numbers in place; no more than 2³² of them.
    pub fn shuffle(&mut self, numbers: &mut [u32]) {
        for at in (1..numbers.len()).rev() {
            let other = self.up_to(at as u32);
            numbers.swap(at, other as usize);
        }
    }
}
