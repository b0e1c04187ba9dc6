//! One entry of an archive, from its headers.

use std::ffi::CString;

use super::sparse::Segment;

/// An archive's description of one file. Names are unchecked bytes, except for their length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub attributes: Attributes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File {
        /// The file's apparent size; for a sparse one the archive contains less.
        size_bytes: u64,
        /// The data segments of a sparse file, in order.
        segments: Option<Vec<Segment>>,
    },
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    /// Another name of an existing file.
    Hardlink {
        target: Vec<u8>,
    },
    Fifo,
    Device,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The lowest twelve bits.
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub modified: Moment,
    pub xattrs: Vec<(CString, Vec<u8>)>,
}

/// Since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub secs: i64,
    pub nanos: u32,
}

impl Moment {
    /// Parses `12.5`: seconds with a fraction, of which nine digits count.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let secs: i64 = whole.parse().ok()?;
        if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let digits = format!("{:0<9.9}", fraction);
        let nanos: u32 = digits.parse().ok()?;
        if whole.starts_with('-') && nanos > 0 {
            // The fraction counts away from zero, the kernel's nanoseconds count forward.
            Some(Self { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos })
        } else {
            Some(Self { secs, nanos })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_fractions_and_may_be_before_1970() {
        let moment = |secs, nanos| Some(Moment { secs, nanos });
        assert_eq!(Moment::parse("12"), moment(12, 0));
        assert_eq!(Moment::parse("12.5"), moment(12, 500_000_000));
        assert_eq!(Moment::parse("1.0000000019"), moment(1, 1));
        assert_eq!(Moment::parse("-1.25"), moment(-2, 750_000_000));
        assert_eq!(Moment::parse("-0.25"), moment(-1, 750_000_000));
        for text in ["", ".", "x", "1.x", "1.-5", "99999999999999999999"] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }
}
