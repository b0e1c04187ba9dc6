//! Layers that imports in progress are about to use. A pin is set before its first layer is looked up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandkeep_storage::LayerId;

#[derive(Clone, Default)]
pub struct Pins(Arc<Mutex<Vec<Arc<[LayerId]>>>>);

/// Keeps layers (lowest first) from being collected until it is dropped.
pub struct Pin {
    pins: Pins,
    layers: Arc<[LayerId]>,
}

impl Pins {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<[LayerId]>>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, layers: Vec<LayerId>) -> Pin {
        let layers: Arc<[LayerId]> = layers.into();
        self.all().push(Arc::clone(&layers));
        Pin { pins: self.clone(), layers }
    }

    pub fn pinned(&self) -> Vec<Arc<[LayerId]>> {
        self.all().clone()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.all().retain(|layers| !Arc::ptr_eq(layers, &self.layers));
    }
}
