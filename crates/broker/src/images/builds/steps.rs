//! The stages of a build and their steps, in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Cache;
use super::cache;
use super::copying::Copying;
use super::mounts::Binds;
use super::network::policy_text;
use super::room::Rooms;
use crate::Broker;
use crate::error::Error;
use crate::images::import::Job;
use crate::images::layers::Taken;
use crate::images::pins::Pin;
use crate::images::progress::{BuildStep, Events};
use crate::images::record::KeptLayer;
use sandkeep_core::network::NetworkTerms;
use sandkeep_core::{Owner, Port, Probe, ProcessTerms, StartUp, failpoint, limits, with_causes};
use sandkeep_guestlink::OutputStream;
use sandkeep_image::{
    copying::{Context, CopyError},
    recipe::{
        Base, Beginning, Effect, Instruction, Key, READY, Ready, Recipe, RecipeError, Running,
        START, Scene, Stage, Step,
    },
};
use sandkeep_storage::LayerId;

/// The shell for start commands and ready checks.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// A build in progress. It pins its layers.
pub struct Builder<'a> {
    pub broker: &'a Broker,
    pub job: &'a Job,
    pub owner: Owner,
    pub rooms: &'a Rooms,
    /// What commands may reach.
    pub network: NetworkTerms,
    pub events: Events,
    pub recipe: Arc<Recipe>,
    pub context: Arc<Context>,
    pub done: BTreeMap<usize, Built>,
    pub pins: Vec<Pin>,
    pub taken: Vec<Taken>,
    pub cache: Cache,
    /// The number of steps, and how many have started.
    steps: usize,
    begun: usize,
}

/// The result of a stage.
#[derive(Clone, Debug)]
pub struct Built {
    pub key: Key,
    /// Lowest first.
    pub layers: Vec<KeptLayer>,
    /// The built-in template that shows through.
    pub over: Option<String>,
    pub scene: Scene,
    /// The base's start command, unless the stage sets one.
    pub start: Option<StartUp>,
}

/// The effect of a step on the files.
enum StepEffect {
    Run(Running, Binds),
    Write(Copying),
}

impl Built {
    pub fn layer_ids(&self) -> Vec<LayerId> {
        self.layers.iter().map(|layer| layer.id.clone()).collect()
    }

    /// The program that runs in every sandbox of the template.
    pub fn start_up(&self) -> Result<Option<StartUp>, Error> {
        let shell = |command: &str| SHELL.into_iter().chain([command]).map(str::to_owned).collect();
        let ready = self.scene.ready();
        let Some(command) = self.scene.start() else {
            return match ready {
                None => Ok(self.start.clone()),
                Some(_) => {
                    let problem = format!("{READY} is about what {START} begins, and nothing does");
                    Err(Error::BuildFileInvalid { problem })
                }
            };
        };
        let (port, probe) = match ready {
            None => (None, None),
            Some(Ready::Port(port)) => (Port::new(*port), Some(Probe::Tcp)),
            Some(Ready::Http { port, path }) => {
                (Port::new(*port), Some(Probe::Http { path: path.clone() }))
            }
            Some(Ready::Run(command)) => (None, Some(Probe::Command { argv: shell(command) })),
        };
        let timeout_secs = limits::START_UP_READY.as_secs();
        let ready = probe.map(|probe| sandkeep_core::Ready { probe, timeout_secs });
        let terms = ProcessTerms { port, ready };
        terms
            .check()
            .map_err(|wrong| Error::BuildFileInvalid { problem: format!("{READY}: {wrong}") })?;
        Ok(Some(StartUp { argv: shell(command), terms }))
    }
}

impl<'a> Builder<'a> {
    #[expect(clippy::too_many_arguments, reason = "each is one thing that a build is made of")]
    pub fn new(
        broker: &'a Broker,
        job: &'a Job,
        owner: Owner,
        rooms: &'a Rooms,
        network: NetworkTerms,
        events: Events,
        cache: Cache,
        recipe: Recipe,
        context: Arc<Context>,
    ) -> Self {
        Self {
            broker,
            job,
            owner,
            rooms,
            network,
            events,
            recipe: Arc::new(recipe),
            context,
            done: BTreeMap::new(),
            pins: Vec::new(),
            taken: Vec::new(),
            cache,
            steps: 0,
            begun: 0,
        }
    }

    /// Builds a stage, after the stages that it depends on.
    pub async fn all(&mut self, target: usize) -> Result<Built, Error> {
        let recipe = Arc::clone(&self.recipe);
        let needed = recipe.needed(target);
        self.steps = needed.iter().map(|index| 1 + recipe.stages[*index].steps.len()).sum();
        for index in needed {
            let built = self.stage(&recipe.stages[index]).await?;
            self.done.insert(index, built);
        }
        Ok(self.done[&target].clone())
    }

    async fn stage(&mut self, stage: &Stage) -> Result<Built, Error> {
        let recipe = Arc::clone(&self.recipe);
        let mut built = match &stage.base {
            Base::Scratch => {
                self.tell(stage, stage.line, "FROM scratch", Cache::PassedBy).await;
                let scene = Scene::begin(&recipe, Beginning::Scratch);
                let key = Key::of_layers(&[]);
                Built { key, layers: Vec::new(), over: None, scene, start: None }
            }
            Base::Stage(index) => {
                let before = self.done[index].clone();
                let said =
                    format!("FROM {}", recipe.stages[*index].name.as_deref().unwrap_or("stage"));
                self.tell(stage, stage.line, &said, Cache::PassedBy).await;
                let scene = Scene::begin(&recipe, Beginning::Stage(&before.scene));
                Built { scene, start: before.start_up()?, ..before }
            }
            Base::Image(name) => {
                self.tell(stage, stage.line, &format!("FROM {name}"), Cache::PassedBy).await;
                self.base(name, stage.line).await?
            }
        };
        for step in &stage.steps {
            self.step(stage, &mut built, step).await?;
        }
        Ok(built)
    }

    async fn step(&mut self, stage: &Stage, built: &mut Built, step: &Step) -> Result<(), Error> {
        let invalid = |error: RecipeError| Error::BuildFileInvalid { problem: error.to_string() };
        let effect = built.scene.take(step).map_err(invalid)?;
        let work = match &effect {
            Effect::Noted => {
                self.tell(stage, step.line, &step.written, Cache::PassedBy).await;
                if let Instruction::Ignored(why) = &step.instruction {
                    let warning = Bytes::from(format!("warning: {why}\n"));
                    self.events.output(OutputStream::Stderr, warning).await;
                }
                return Ok(());
            }
            Effect::Run(running) => {
                StepEffect::Run(running.clone(), self.plan_binds(running, step).await?)
            }
            Effect::Copy(copied) => {
                StepEffect::Write(self.plan_copy(&built.layers, copied, step).await?)
            }
            Effect::Directory(directory) => {
                StepEffect::Write(self.plan_directory(built, directory, step).await?)
            }
        };
        let files = match &work {
            StepEffect::Run(_, binds) => &binds.files(),
            StepEffect::Write(copying) => &copying.files,
        };
        built.key = built.key.after(&effect, files);
        if let (Effect::Run(_), Some(policy)) = (&effect, self.network.policy.policy()) {
            built.key = built.key.in_network(&policy_text(policy));
        }
        // If several builds of one owner need the same step, the first runs it and the others use its result. Builds of
        // other owners do not wait, because waiting would reveal that the step is being run.
        let Owner { organization, user, project } = &self.owner;
        let step_key = built.key.digest().hex();
        let name = sandkeep_store::Key::new(["build-step", organization, user, project, &step_key]);
        let _only = self.broker.shared.images.layers.join(name).await;
        if self.cache == Cache::Used
            && let Some((layers, pin)) =
                cache::find(&self.broker.shared, &self.owner, &built.key).await?
        {
            self.tell(stage, step.line, &step.written, Cache::Used).await;
            self.pins.push(pin);
            built.layers = layers;
            return Ok(());
        }
        self.tell(stage, step.line, &step.written, Cache::PassedBy).await;
        match work {
            StepEffect::Run(running, binds) => self.run(built, &running, binds, step).await?,
            StepEffect::Write(copying) => self.write(built, copying, step).await?,
        }
        cache::remember(&self.broker.shared, &self.owner, &built.key, &built.layers).await?;
        failpoint!("build.after_step");
        Ok(())
    }

    /// Reports that a step starts, or that it is cached.
    async fn tell(&mut self, stage: &Stage, line: usize, instruction: &str, cached: Cache) {
        self.begun += 1;
        let step = BuildStep {
            step: self.begun,
            steps: self.steps,
            stage: stage.name.clone(),
            line,
            instruction: instruction.to_owned(),
            cached: cached == Cache::Used,
        };
        self.events.step(step).await;
    }
}

/// The error of a step that fails because of its instruction or the existing files.
pub fn failed(step: &Step) -> impl Fn(CopyError) -> Error {
    let (line, instruction) = (step.line, step.written.clone());
    move |error| {
        let instruction = instruction.clone();
        Error::BuildFailed { line, instruction, problem: with_causes(&error) }
    }
}
