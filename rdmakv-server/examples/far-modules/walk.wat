;; Follows a chain of nodes to a key, as the built-in procedure `walk` does. A node has 64 bytes: the address of the next one at 8, and a key
;; of 8 bytes at 16. The state is the key, then u32, how many nodes may be read.
;;
;;     wat2wasm walk.wat && rdmakv -s shm:@far far module add walk walk.wasm
(module
  (import "far" "read" (func $read (param i64 i32 i32)))
  (import "far" "reply" (func $reply (param i32 i32)))
  (import "far" "state" (func $state (param i32 i32) (result i32)))
  (import "far" "set_state" (func $set_state (param i32 i32)))
  (import "far" "done" (func $done))
  (memory (export "memory") 1)
  ;; The state is at 0, the node at 64.
  (func (export "step") (param $at i64) (result i64)
    (local $next i64)
    (drop (call $state (i32.const 0) (i32.const 12)))
    (call $read (local.get $at) (i32.const 64) (i32.const 64))
    (if (i64.eq (i64.load (i32.const 80)) (i64.load (i32.const 0)))
      (then
        (call $reply (i32.const 64) (i32.const 64))
        (call $done)
        (return (local.get $at))))
    (i32.store (i32.const 8) (i32.sub (i32.load (i32.const 8)) (i32.const 1)))
    (local.set $next (i64.load (i32.const 72)))
    (if (i32.or (i64.eqz (local.get $next)) (i32.eqz (i32.load (i32.const 8))))
      (then
        (call $done)
        (return (i64.const 0))))
    (call $set_state (i32.const 0) (i32.const 12))
    (local.get $next)))
