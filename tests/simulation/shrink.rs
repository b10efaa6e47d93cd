//! Shrinks a scene that fails to the smallest one that is found to fail in the same way.

use std::time::Duration;

use crate::{
    run::run,
    scene::{HostScene, Scene, Word},
    world::Failure,
};

/// How many runs a search may take.
const PATIENCE: usize = 600;

/// The smallest scene that was found to fail with the same kind of failure as `scene`.
pub fn shrink(scene: &Scene, failure: &Failure) -> Scene {
    let mut shrinker = Shrinker {
        best: scene.clone(),
        failure: failure.clone(),
        left: PATIENCE,
    };
    loop {
        let before = shrinker.best.clone();
        shrinker.remove_faults();
        shrinker.simplify_faults();
        shrinker.simplify_hosts();
        if shrinker.best == before || shrinker.left == 0 {
            return shrinker.best;
        }
    }
}

struct Shrinker {
    best: Scene,
    failure: Failure,
    left: usize,
}

impl Shrinker {
    /// Runs `scene`, and makes it the best one if it fails in the same way.
    fn try_out(&mut self, scene: Scene) -> bool {
        if self.left == 0 || scene == self.best {
            return false;
        }
        self.left -= 1;
        let fails = run(&scene)
            .failure
            .is_some_and(|failure| failure.is_like(&self.failure));
        if fails {
            self.best = scene;
        }
        fails
    }

    /// Delta debugging: tries to leave out half of the faults, then quarters, down to single faults.
    fn remove_faults(&mut self) {
        let mut size = self.best.faults.len().div_ceil(2);
        while size > 0 {
            let mut from = 0;
            while from < self.best.faults.len() {
                let mut scene = self.best.clone();
                scene
                    .faults
                    .drain(from..(from + size).min(scene.faults.len()));
                if !self.try_out(scene) {
                    from += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }

    /// Tries rounded times, and shorter faults.
    fn simplify_faults(&mut self) {
        for index in 0..self.best.faults.len() {
            for step in [1000, 500, 100, 50, 10] {
                let mut scene = self.best.clone();
                scene.faults[index].at = round(scene.faults[index].at, step);
                if self.try_out(scene) {
                    break;
                }
            }
            for step in [1000, 500, 100, 50, 10] {
                let mut scene = self.best.clone();
                scene.faults[index].lasts =
                    round(scene.faults[index].lasts, step).max(Duration::from_millis(step));
                if self.try_out(scene) {
                    break;
                }
            }
            let mut scene = self.best.clone();
            scene.faults[index].lasts /= 2;
            self.try_out(scene);
        }
    }

    /// Tries fewer hosts, and hosts with the default behaviour.
    fn simplify_hosts(&mut self) {
        let spared = |scene: &Scene| {
            scene
                .faults
                .iter()
                .all(|fault| fault.host != Some(scene.hosts.len() - 1))
        };
        if self.best.hosts.len() > 2 && spared(&self.best) {
            let mut scene = self.best.clone();
            scene.hosts.pop();
            self.try_out(scene);
        }
        let simpler: [fn(&mut Scene); 5] = [
            |scene| _ = scene.words.remove(&Word::Checked),
            |scene| _ = scene.words.remove(&Word::Fenced),
            |scene| _ = scene.words.remove(&Word::Hurried),
            |scene| scene.hosts.iter_mut().for_each(|host| host.timings = 0),
            |scene| scene.palette.truncate(1),
        ];
        for change in simpler {
            let mut scene = self.best.clone();
            change(&mut scene);
            if scene
                .hosts
                .iter()
                .all(|host| host.timings < scene.palette.len())
            {
                self.try_out(scene);
            }
        }
        let usual: [fn(&mut HostScene); 7] = [
            |host| host.start_takes = HostScene::default().start_takes,
            |host| host.stop_takes = HostScene::default().stop_takes,
            |host| host.kill_takes = HostScene::default().kill_takes,
            |host| host.stop_timeout = HostScene::default().stop_timeout,
            |host| host.restart = None,
            |host| {
                (host.boot_rate, host.raw_rate) = (
                    HostScene::default().boot_rate,
                    HostScene::default().raw_rate,
                )
            },
            |host| host.begins = Duration::ZERO,
        ];
        for h in 0..self.best.hosts.len() {
            for change in usual {
                let mut scene = self.best.clone();
                change(&mut scene.hosts[h]);
                self.try_out(scene);
            }
        }
    }
}

fn round(span: Duration, step: u64) -> Duration {
    let millis = u64::try_from(span.as_millis()).expect("short");
    Duration::from_millis(millis / step * step)
}
