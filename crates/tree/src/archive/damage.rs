//! Problems in the bytes of an archive; the reader adds the position.

/// A problem of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a header has a wrong checksum, or this is no archive")]
    Checksum,
    #[error("it ends after a header that announces another")]
    NothingAnnounced,
    #[error("something follows half an end mark")]
    HalfAnEndMark,
    #[error("a size is no number")]
    Size,
    #[error("an owner is no number")]
    Owner,
    #[error("a time is no number")]
    Time,
    #[error("a mode is no number")]
    Mode,
    #[error("a PAX record is damaged")]
    Record,
    #[error("a PAX record has something else where a number must be")]
    RecordNumber,
    #[error("a PAX time is no number")]
    RecordTime,
    #[error("the name of an attribute holds a NUL")]
    AttributeName,
    #[error("a sparse file without a GNU header")]
    SparseHeader,
    #[error("a sparse file with a damaged map")]
    SparseMap,
    #[error("a sparse file of a form nobody knows")]
    SparseForm,
    #[error("a sparse file that does not tell its size")]
    SparseSize,
    #[error("a sparse file with half a part")]
    SparseHalfPart,
    #[error("a sparse file that ends within its map")]
    SparseMapCutOff,
    #[error("the parts of a sparse file overlap")]
    SparseOverlap,
    #[error("a part of a sparse file lies beyond its end")]
    SparseBeyondEnd,
    #[error("a sparse file has more or fewer bytes than its map")]
    SparseSum,
}
