//! A safe wrapper of libjpeg-turbo's decompressor.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::Rect;

/// Decodes one image after another. It keeps tables and settings, not pixels.
pub(super) struct Decompressor(NonNull<c_void>);

/// An image whose header was read.
pub(super) struct Opened<'a> {
    decompressor: &'a mut Decompressor,
    bytes: &'a [u8],
    pub width: u32,
    pub height: u32,
}

impl Decompressor {
    /// Returns `None` if there is no memory for it.
    pub fn new() -> Option<Decompressor> {
        // SAFETY: it may be called with any number.
        let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let mut this = Decompressor(NonNull::new(handle)?);
        this.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 1)?;
        // The exact transform, and chroma from neighbours: as with Pillow.
        this.set(sys::TJPARAM_TJPARAM_FASTDCT, 0)?;
        this.set(sys::TJPARAM_TJPARAM_FASTUPSAMPLE, 0)?;
        // Colour profiles are ignored.
        this.set(sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        Some(this)
    }

    /// Reads the header of an image. Returns `None` on a warning or error, or if libjpeg-turbo has
    /// no name for the sampling: it decodes no parts of such images.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8]) -> Option<Opened<'a>> {
        let len = size(bytes)?;
        // SAFETY: the handle is valid, and `bytes` has the given length; it is not read after the
        // call.
        let status = unsafe { sys::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), len) };
        passed(status)?;
        let get = |what: sys::TJPARAM| {
            // SAFETY: the handle is valid, and any number may be asked for.
            unsafe { sys::tj3Get(self.0.as_ptr(), what as c_int) }
        };
        let width = get(sys::TJPARAM_TJPARAM_JPEGWIDTH).max(0) as u32;
        let height = get(sys::TJPARAM_TJPARAM_JPEGHEIGHT).max(0) as u32;
        let has_parts = get(sys::TJPARAM_TJPARAM_SUBSAMP) != sys::TJSAMP_TJSAMP_UNKNOWN;
        has_parts.then_some(Opened {
            decompressor: self,
            bytes,
            width,
            height,
        })
    }

    fn set(&mut self, what: sys::TJPARAM, value: c_int) -> Option<()> {
        // SAFETY: the handle is valid, and parameter and value are checked.
        let status = unsafe { sys::tj3Set(self.0.as_ptr(), what as c_int, value) };
        passed(status)
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used again.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Opened<'_> {
    /// Decodes a part at 1/`scale` of the size to RGB. Returns `None` on a warning or error.
    ///
    /// # Panics
    /// Panics if the pixels do not fit the part.
    pub fn decode(self, scale: u32, part: Rect, pixels: &mut [u8]) -> Option<()> {
        let wanted = u64::from(part.width) * u64::from(part.height) * 3;
        assert!(wanted > 0 && wanted == pixels.len() as u64);

        let handle = self.decompressor.0.as_ptr();
        let factor = sys::tjscalingfactor {
            num: 1,
            denom: scale as c_int,
        };
        // SAFETY: the handle is valid, and the factor is checked.
        let status = unsafe { sys::tj3SetScalingFactor(handle, factor) };
        passed(status)?;

        let [x, y, w, h] = [part.x, part.y, part.width, part.height].map(|edge| edge as c_int);
        let region = sys::tjregion { x, y, w, h };
        // SAFETY: the handle is valid, and the region is checked against the header that was read.
        let status = unsafe { sys::tj3SetCroppingRegion(handle, region) };
        passed(status)?;

        let (len, pitch) = (size(self.bytes)?, (part.width * 3) as c_int);
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
                sys::TJPF_TJPF_RGB as c_int,
            )
        };
        passed(status)
    }
}

/// Returns `None` if a call warned or failed.
fn passed(status: c_int) -> Option<()> {
    (status == 0).then_some(())
}

/// Returns the length in the type of the bindings: `unsigned long`.
fn size(bytes: &[u8]) -> Option<sys::size_t> {
    bytes.len().try_into().ok()
}
