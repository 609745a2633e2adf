//! A safe wrapper of libjpeg-turbo's decompressor.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use datapipes::{Error, ErrorKind, Result};
use turbojpeg_sys as sys;

use crate::Rect;
use crate::decode::jpeg::MAX_SCANS;

/// Decodes one image after another. It keeps tables and settings, not pixels.
pub(super) struct Decompressor(NonNull<c_void>);

/// An image whose header was read.
pub(super) struct Opened<'a> {
    decompressor: &'a mut Decompressor,
    bytes: &'a [u8],
    pub width: u32,
    pub height: u32,
    /// True if parts of it can be decoded.
    pub has_parts: bool,
}

impl Decompressor {
    pub fn new() -> Result<Decompressor> {
        // SAFETY: it may be called with any number.
        let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(Error::new(
                ErrorKind::Limit,
                "libjpeg-turbo has no memory for a decompressor",
            ));
        };
        let mut this = Decompressor(handle);
        this.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 1)?;
        this.set(sys::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS as c_int)?;
        // The exact transform, and chroma from neighbours: as with Pillow.
        this.set(sys::TJPARAM_TJPARAM_FASTDCT, 0)?;
        this.set(sys::TJPARAM_TJPARAM_FASTUPSAMPLE, 0)?;
        // Colour profiles are ignored.
        this.set(sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        Ok(this)
    }

    /// Reads the header of an image whose decoding takes about this much memory.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8], memory: u64) -> Result<Opened<'a>> {
        // In MiB. The additional memory is for rows and for blocks over the edge, which are at most
        // 32 wide or high.
        let most = c_int::try_from((memory >> 20) + 64).unwrap_or(c_int::MAX);
        self.set(sys::TJPARAM_TJPARAM_MAXMEMORY, most)?;
        let len = size(bytes)?;
        // SAFETY: the handle is valid, and `bytes` has the given length; it is not read after the
        // call.
        let status = unsafe { sys::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), len) };
        self.check(status)?;
        let get = |what: sys::TJPARAM| {
            // SAFETY: the handle is valid, and any number may be asked for.
            unsafe { sys::tj3Get(self.0.as_ptr(), what as c_int) }
        };
        let width = get(sys::TJPARAM_TJPARAM_JPEGWIDTH).max(0) as u32;
        let height = get(sys::TJPARAM_TJPARAM_JPEGHEIGHT).max(0) as u32;
        let has_parts = get(sys::TJPARAM_TJPARAM_SUBSAMP) != sys::TJSAMP_TJSAMP_UNKNOWN;
        Ok(Opened {
            decompressor: self,
            bytes,
            width,
            height,
            has_parts,
        })
    }

    fn set(&mut self, what: sys::TJPARAM, value: c_int) -> Result<()> {
        // SAFETY: the handle is valid, and parameter and value are checked.
        let status = unsafe { sys::tj3Set(self.0.as_ptr(), what as c_int, value) };
        self.check(status)
    }

    /// Returns an error with libjpeg-turbo's message, if the last call failed.
    fn check(&self, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the handle is valid, and so is the text that it owns until the next call with it.
        let text =
            unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.0.as_ptr())) }.to_string_lossy();
        // Some messages begin with the name of the function.
        let text = text.split_once("(): ").map_or(&*text, |(_, text)| text);
        let kind = match text {
            _ if text.starts_with("Premature end of") => ErrorKind::Truncated,
            _ if text.starts_with("Unsupported") || text.starts_with("Sorry") => {
                ErrorKind::Unsupported
            }
            _ if text.starts_with("Maximum")
                || text.contains("emory")
                || text.contains("more than") =>
            {
                ErrorKind::Limit
            }
            _ => ErrorKind::Corrupt,
        };
        Err(Error::new(kind, format!("a JPEG: {text}")))
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used again.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Opened<'_> {
    /// Decodes a part at 1/`scale` of the size: to RGB, or to CMYK if there are four channels.
    ///
    /// # Panics
    /// Panics if the pixels do not fit the part.
    pub fn decode(self, scale: u32, part: Rect, channels: u32, pixels: &mut [u8]) -> Result<()> {
        let format = if channels == 4 {
            sys::TJPF_TJPF_CMYK
        } else {
            sys::TJPF_TJPF_RGB
        };
        let wanted = u64::from(part.width) * u64::from(part.height) * u64::from(channels);
        assert!(wanted > 0 && matches!(channels, 3 | 4) && wanted == pixels.len() as u64);

        let handle = self.decompressor.0.as_ptr();
        let factor = sys::tjscalingfactor {
            num: 1,
            denom: scale as c_int,
        };
        // SAFETY: the handle is valid, and the factor is checked.
        let status = unsafe { sys::tj3SetScalingFactor(handle, factor) };
        self.decompressor.check(status)?;

        let (width, height) = (self.width.div_ceil(scale), self.height.div_ceil(scale));
        let region = match part {
            // A region of zeros stands for the whole image, and needs no name of the sampling.
            _ if part
                == (Rect {
                    x: 0,
                    y: 0,
                    width,
                    height,
                }) =>
            {
                sys::tjregion {
                    x: 0,
                    y: 0,
                    w: 0,
                    h: 0,
                }
            }
            Rect {
                x,
                y,
                width,
                height,
            } => {
                let [x, y, w, h] = [x, y, width, height].map(|edge| edge as c_int);
                sys::tjregion { x, y, w, h }
            }
        };
        // SAFETY: the handle is valid, and the region is checked against the header that was read.
        let status = unsafe { sys::tj3SetCroppingRegion(handle, region) };
        self.decompressor.check(status)?;

        let (len, pitch) = (size(self.bytes)?, (part.width * channels) as c_int);
        // SAFETY: the handle is valid, and `bytes` has the given length. They are the bytes whose
        // header declared the size of the image, so the call writes `height` rows of `pitch` bytes
        // of the region: the length of `pixels`, as was asserted. The region is neither empty,
        // which would mean all the rest, nor outside, which is an error.
        let status = unsafe {
            sys::tj3Decompress8(
                handle,
                self.bytes.as_ptr(),
                len,
                pixels.as_mut_ptr(),
                pitch,
                format as c_int,
            )
        };
        self.decompressor.check(status)
    }
}

/// Returns the length in the type of the bindings: `unsigned long`.
fn size(bytes: &[u8]) -> Result<sys::size_t> {
    let message = || Error::new(ErrorKind::Limit, format!("a JPEG of {} bytes", bytes.len()));
    sys::size_t::try_from(bytes.len()).map_err(|_| message())
}
