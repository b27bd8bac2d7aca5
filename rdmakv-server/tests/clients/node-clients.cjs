// Two clients of the Node world, unchanged, against a server: `memjs` speaks the binary protocol, `memcached` the text one.
// What one writes the other reads.
'use strict'
const assert = require('node:assert/strict')
const { promisify } = require('node:util')
const memjs = require('memjs')
const Memcached = require('memcached')

const [place] = process.argv.slice(2)
const binary = memjs.Client.create(place, { timeout: 10, retries: 1 })
const text = new Memcached(place, { timeout: 10000, retries: 1 })
const t = {}
for (const name of ['get', 'gets', 'getMulti', 'set', 'cas', 'add', 'replace', 'append', 'prepend', 'incr', 'decr', 'del', 'touch',
  'flush', 'version', 'stats', 'items', 'slabs', 'settings']) {
  t[name] = promisify(text[name].bind(text))
}

const tests = {
  async 'binary: a value comes back with its flags, and a missing one as nothing' () {
    assert.equal(await binary.set('b', 'hello', { expires: 60 }), true)
    const { value, flags } = await binary.get('b')
    assert.equal(value.toString(), 'hello')
    assert.ok(flags)
    assert.equal((await binary.get('nothing')).value, null)
  },
  async 'binary: bytes of any kind and nearly a megabyte of them' () {
    const value = Buffer.from(Array.from({ length: 900_000 }, (_, at) => (at * 7) >> 3 & 255))
    assert.equal(await binary.set('large', value, {}), true)
    assert.ok((await binary.get('large')).value.equals(value))
    assert.ok((await t.get('large')).length > 0)
    await assert.rejects(binary.set('larger', Buffer.alloc(1 << 21), {}))
  },
  // Its prepend sends an append, whatever the server.
  async 'binary: add, replace, append, delete' () {
    assert.equal(await binary.add('a', '1', {}), true)
    assert.equal(await binary.add('a', '2', {}), false)
    assert.equal(await binary.replace('none', '2', {}), false)
    assert.equal(await binary.replace('a', 'middle', {}), true)
    assert.equal(await binary.append('a', '>'), true)
    assert.equal((await binary.get('a')).value.toString(), 'middle>')
    assert.equal(await binary.delete('a'), true)
    assert.equal(await binary.delete('a'), false)
  },
  async 'binary: counting, from a number of its own or from a start' () {
    assert.deepEqual((await binary.increment('count', 5, { initial: 10 })).value, 10)
    assert.deepEqual((await binary.increment('count', 5, {})).value, 15)
    assert.deepEqual((await binary.decrement('count', 100, {})).value, 0)
  },
  async 'binary: touch, statistics' () {
    assert.equal(await binary.set('touched', 'x', {}), true)
    assert.equal(await binary.touch('touched', 100), true)
    assert.equal(await binary.touch('untouched', 100), false)
    const stats = await new Promise((resolve, reject) =>
      binary.stats((error, server, stats) => error ? reject(error) : resolve(stats)))
    assert.ok(Number(stats.curr_items) >= 1)
  },
  async 'text: what is set is got, one key or many, as a string, a number or an object' () {
    await t.set('s', 'hello', 60)
    await t.set('n', 42, 60)
    await t.set('o', { a: [1, 2] }, 60)
    assert.equal(await t.get('s'), 'hello')
    assert.deepEqual(await t.getMulti(['s', 'n', 'o', 'none']), { s: 'hello', n: 42, o: { a: [1, 2] } })
    assert.equal(await t.get('none'), undefined)
  },
  async 'text: cas is done once' () {
    await t.set('c', 'one', 60)
    const { cas } = await t.gets('c')
    assert.equal(await t.cas('c', 'two', cas, 60), true)
    assert.equal(await t.cas('c', 'three', cas, 60), false)
    assert.equal(await t.get('c'), 'two')
  },
  async 'text: add, replace, append, prepend, delete, touch' () {
    await t.add('ta', 'm', 60)
    await assert.rejects(t.add('ta', 'm', 60))
    await assert.rejects(t.replace('tb', 'm', 60))
    await t.append('ta', '>')
    await t.prepend('ta', '<')
    assert.equal(await t.get('ta'), '<m>')
    assert.equal(await t.touch('ta', 100), true)
    assert.equal(await t.del('ta'), true)
    assert.equal(await t.get('ta'), undefined)
  },
  async 'text: counting stops at nothing' () {
    await t.set('tc', 10, 60)
    assert.equal(await t.incr('tc', 5), 15)
    assert.equal(await t.decr('tc', 100), 0)
    assert.equal(await t.incr('no-counter', 1), false)
  },
  async 'text: statistics of every kind' () {
    assert.ok((await t.stats())[0].curr_items >= 1)
    const { version, major, minor } = (await t.version())[0]
    assert.deepEqual([version, major, minor], ['1.6.18', '1', '6'])
    assert.ok((await t.settings())[0].maxbytes > 0)
    assert.ok(Object.keys((await t.slabs())[0]).length > 1)
    assert.ok(Object.keys((await t.items())[0]).length > 0)
  },
  async 'what one writes the other reads' () {
    await binary.set('shared', 'from binary', { expires: 60 })
    assert.equal((await t.get('shared')).toString(), 'from binary')
    await t.set('shared', 'from text', 60)
    assert.equal((await binary.get('shared')).value.toString(), 'from text')
  },
  async 'a thousand requests at once are each answered' () {
    const keys = Array.from({ length: 1000 }, (_, at) => `many-${at}`)
    await Promise.all(keys.map((key) => binary.set(key, key.repeat(10), {})))
    const values = await Promise.all(keys.map((key) => t.get(key)))
    values.forEach((value, at) => assert.equal(String(value), keys[at].repeat(10)))
  },
  async 'flush leaves nothing' () {
    await t.flush()
    assert.equal((await binary.get('shared')).value, null)
  },
}

async function main () {
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test()
    } catch (error) {
      console.error(`${name}: ${error.stack}`)
      process.exit(1)
    }
  }
  console.log(`${Object.keys(tests).length} passed`)
  process.exit(0)
}
main()
