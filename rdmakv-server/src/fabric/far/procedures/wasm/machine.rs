//! The machine that compiles modules and takes their steps: wasmi, an interpreter.
//!
//! Each module has an engine of its own: an engine keeps the code of all modules that it ever compiled, refused ones too.
//!
//! A run has an instance of its own, so nothing is left for the next one. A step that stops has done nothing: its state is that of its
//! beginning, and its reply is taken back.

use rdmakv_proto::far::messages::{Refusal, RunStatus};
use rustix::time::{ClockId, clock_gettime};
use wasmi::{
    CompilationMode, Config, EnforcedLimits, Engine, ExternType, Instance, Linker, Module, OperatorCost, Store,
    TrapCode, TypedFunc,
};

use super::super::{End, LIMITS, Space, Spent};
use super::budget::Budget;
use super::outline;
use super::running::Running;
use super::{Call, Ran, host};

/// Calls inside of each other at most.
const DEPTH: usize = 256;
/// Bytes of parameters, locals and operands at most. A call makes those of its function zero, which costs no fuel.
const STACK: usize = 16 << 10;
/// Fuel of instructions that take longer than others.
const CALL_COST: u8 = 16;
const GROW_COST: u8 = 64;

/// A module that can be run, with what runs it.
pub(super) struct Compiled {
    engine: Engine,
    linker: Linker<Running>,
    module: Module,
    /// Bytes that are made for each run.
    made: u64,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("made", &self.made).finish_non_exhaustive()
    }
}

fn config() -> Config {
    let costs = OperatorCost {
        call: CALL_COST,
        call_indirect: CALL_COST,
        memory_grow: GROW_COST,
        table_grow: GROW_COST,
        ..OperatorCost::default()
    };
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .operator_cost(costs)
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .allow_start_fn(false)
        .ignore_custom_sections(true)
        .wasm_multi_memory(false)
        .wasm_tail_call(false)
        .set_max_recursion_depth(DEPTH)
        .set_max_stack_height(STACK);
    config
}

/// Returns the processor's time of this thread, in nanoseconds.
fn processor_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn linker(engine: &Engine) -> Result<Linker<Running>, wasmi::Error> {
    let mut linker = Linker::new(engine);
    host::define(&mut linker)?;
    Ok(linker)
}

impl Compiled {
    /// Compiles a module.
    ///
    /// # Errors
    ///
    /// It cannot be run.
    pub(super) fn new(code: &[u8]) -> Result<Self, Refusal> {
        let memory = outline::check(code)?;
        let engine = Engine::new(&config());
        let linker = linker(&engine).map_err(|_| Refusal::Unable)?;
        let module = Module::new(&engine, code).map_err(|_| Refusal::BadModule)?;
        let mut functions = module.imports();
        if !functions
            .all(|import| matches!(import.ty(), ExternType::Func(of) if host::has(import.module(), import.name(), of)))
        {
            return Err(Refusal::UnknownImport);
        }
        let compiled = Self { engine, linker, module, made: memory + code.len() as u64 };
        // Its tables and data may not fit.
        let mut store = compiled.store(Running::new(Box::new(Nothing), Spent::default(), Vec::new()));
        let instance = compiled.instance(&mut store).map_err(|_| Refusal::BadModule)?;
        step_of(&instance, &store).ok_or(Refusal::NoStep)?;
        Ok(compiled)
    }

    /// Takes the steps of the module, until it ends here.
    pub(super) fn run(&self, call: Call) -> Ran {
        self.run_by(processor_nanos, call)
    }

    /// Takes the steps of the module by a clock of nanoseconds, until it ends here.
    pub(super) fn run_by(&self, clock: impl Fn() -> u64, call: Call) -> Ran {
        let Call { at, state, space, spent, micros } = call;
        let begun = clock();
        let mut store = self.store(Running::new(space, spent, state));
        let mut budget = Budget::new(micros);
        budget.made(self.made);
        let (end, at) = if spent.hops > LIMITS.hops {
            (End { status: RunStatus::Hops, at }, at)
        } else {
            match self.instance(&mut store) {
                Ok(instance) => take_steps(&instance, &mut store, &mut budget, &clock, at),
                Err(_) => (End { status: RunStatus::Trap, at }, at),
            }
        };
        let nanos = clock().saturating_sub(begun);
        let micros = u32::try_from(budget.micros()).unwrap_or(u32::MAX);
        let Running { spent, reply, state, .. } = store.into_data();
        Ran { end, at, state, spent, nanos, micros, reply }
    }

    fn store(&self, running: Running) -> Store<Running> {
        let mut store = Store::new(&self.engine, running);
        store.limiter(|running| &mut running.limits);
        store
    }

    /// Returns an instance. Its memory is known to the functions `far` from then on.
    fn instance(&self, store: &mut Store<Running>) -> Result<Instance, wasmi::Error> {
        let instance = self.linker.instantiate_and_start(&mut *store, &self.module)?;
        store.data_mut().memory = instance.get_memory(&*store, "memory");
        Ok(instance)
    }
}

fn step_of(instance: &Instance, store: &Store<Running>) -> Option<TypedFunc<i64, i64>> {
    instance.get_typed_func(store, "step").ok()
}

/// Takes the steps of an instance, from an address on. Returns the end, and the address of the step that is next.
fn take_steps(
    instance: &Instance,
    store: &mut Store<Running>,
    budget: &mut Budget,
    clock: impl Fn() -> u64,
    mut at: u64,
) -> (End, u64) {
    let ended = |status, at| (End { status, at }, at);
    let begun = clock();
    let Some(step) = step_of(instance, store) else { return ended(RunStatus::Trap, at) };
    loop {
        budget.ran(clock().saturating_sub(begun) / 1000);
        let Some(fuel) = budget.next_step() else { return ended(RunStatus::Time, at) };
        // The server that has its address takes a step.
        if store.data_mut().space.here(at, 1) == 0 {
            return ended(RunStatus::Elsewhere, at);
        }
        let running = store.data_mut();
        (running.is_done, running.has_written) = (false, false);
        let before = (running.state.clone(), running.reply.len(), running.spent.replied);
        if store.set_fuel(fuel).is_err() {
            return ended(RunStatus::Trap, at);
        }
        let taken = step.call(&mut *store, at.cast_signed());
        budget.spend(fuel - store.get_fuel().unwrap_or(0).min(fuel));
        let running = store.data_mut();
        match taken {
            Ok(found) if running.is_done => return (End { status: RunStatus::Done, at: found.cast_unsigned() }, at),
            Ok(next) => at = next.cast_unsigned(),
            Err(error) => {
                (running.state, running.spent.replied) = (before.0, before.2);
                running.reply.truncate(before.1);
                let end = match running.stop.take() {
                    Some(stop) => stop.end(at),
                    None if error.as_trap_code() == Some(TrapCode::OutOfFuel) => {
                        // With the rest of the run's fuel, it is no fault of the step.
                        let status = if Budget::is_whole(fuel) { RunStatus::Fuel } else { RunStatus::Time };
                        End { status, at }
                    }
                    None => End { status: RunStatus::Trap, at },
                };
                return (end, at);
            }
        }
    }
}

/// A memory without bytes, for a module that is tried.
struct Nothing;

impl Space for Nothing {
    fn here(&mut self, _: u64, _: usize) -> usize {
        0
    }
    fn read(&mut self, _: u64, _: &mut [u8]) -> bool {
        false
    }
    fn cas64(&mut self, _: u64, _: u64, _: u64) -> Result<u64, super::super::Miss> {
        Err(super::super::Miss::Elsewhere)
    }
}
