// PURISTA's own library calls the Sandbox service. Its NATS bridge is not published on npm, so this has a small one:
// envelopes, errors and names of subjects are the library's.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)
const { connect, StringCodec } = require('nats')
const {
  EBMessageType, EventBridgeBaseClass, HandledError, UnhandledError, convertToSnakeCase, getNewCorrelationId,
  getNewEBMessageId, isCommandErrorResponse, isCommandSuccessResponse, serializeOtp,
} = require('@purista/core')

const codec = StringCodec()

function subjectOf(message) {
  const { sender, receiver = {} } = message
  const names = [
    message.messageType, message.principalId, message.tenantId, sender.instanceId, sender.serviceName,
    sender.serviceVersion, sender.serviceTarget, message.eventName, receiver.instanceId, receiver.serviceName,
    receiver.serviceVersion, receiver.serviceTarget,
  ]
  return ['purista', ...names.map((name) => convertToSnakeCase(name || '__empty__'))].join('.')
}

class Bridge extends EventBridgeBaseClass {
  constructor(connection) {
    super('NatsTestBridge', {})
    this.connection = connection
  }

  async invoke(input, timeout = this.defaultCommandTimeout) {
    const command = {
      ...input,
      otp: serializeOtp(),
      sender: { ...input.sender, instanceId: this.instanceId },
      id: getNewEBMessageId(),
      correlationId: getNewCorrelationId(),
      timestamp: Date.now(),
      messageType: EBMessageType.Command,
      contentType: 'application/json',
      contentEncoding: 'utf-8',
    }
    const payload = codec.encode(JSON.stringify(command))
    const reply = await this.connection.request(subjectOf(command), payload, { timeout })
    const message = JSON.parse(codec.decode(reply.data))
    if (isCommandSuccessResponse(message)) return message.payload
    assert.ok(isCommandErrorResponse(message), JSON.stringify(message))
    throw message.isHandledError ? HandledError.fromMessage(message) : UnhandledError.fromMessage(message)
  }
}

const connection = await connect({ servers: process.env.NATS_URL })
const bridge = new Bridge(connection)
const started = connection.subscribe(
  `purista.${convertToSnakeCase('customMessage')}.*.*.*.*.*.*.${convertToSnakeCase('SandboxStarted')}.*.*.*.*`,
  { max: 1 },
)

const call = (serviceTarget, payload, who = { tenantId: 'Acme Inc.', principalId: 'ann@example.com' }) =>
  bridge.invoke({
    ...who,
    sender: { serviceName: 'Caller', serviceVersion: '1', serviceTarget: 'test' },
    receiver: { serviceName: 'Sandbox', serviceVersion: '1', serviceTarget },
    payload: { payload, parameter: {} },
  }, 120_000)

async function refused(status, promise) {
  const error = await promise.then(() => undefined, (error) => error)
  assert.ok(error instanceof HandledError, `${status}: ${error}`)
  assert.equal(error.errorCode, status, error.message)
  return error
}

const made = await call('createSandbox', { projectId: 'web' })
assert.equal(made.status, 'ready')
for await (const message of started) {
  const event = JSON.parse(codec.decode(message.data))
  assert.deepEqual(event.payload, {
    sandboxId: made.sandboxId, organizationId: 'Acme Inc.', projectId: 'web', userId: 'ann@example.com',
  })
}
const of = { sandboxId: made.sandboxId, projectId: 'web' }
assert.deepEqual(await call('ensureSandbox', { projectId: 'web' }),
  { sandboxId: made.sandboxId, status: 'ready', created: false })
assert.deepEqual(await call('writeFiles', { ...of, files: { 'a.txt': { encoding: 'utf-8', content: 'hello' } } }),
  { updated: 1 })
assert.equal(await call('readFile', { ...of, path: 'a.txt' }), 'hello')
assert.deepEqual(await call('executeBash', { ...of, command: 'cat a.txt; exit 7' }),
  { stdout: 'hello', stderr: '', exitCode: 7 })
await refused(400, call('executeBash', of))
await refused(401, call('executeBash', { ...of, command: 'true' }, {}))
await refused(403, call('executeBash', { ...of, command: 'true' }, { tenantId: 'evil', principalId: 'eve' }))
await refused(404, call('readFile', { ...of, sandboxId: '00000000-0000-4000-8000-000000000000', path: 'a' }))
const taken = await refused(409, call('createSandbox', { projectId: 'web' }))
assert.equal(taken.data.sandboxId, made.sandboxId)
await refused(413, call('executeBash', { ...of, command: "head -c 2000000 /dev/zero | tr '\\0' x" }))
const late = await refused(504, call('executeBash', { ...of, command: 'sleep 1000', timeoutMs: 500 }))
assert.equal(late.data.timeoutMs, 500)
const missing = await call('readFile', { ...of, path: 'none' }).then(() => undefined, (error) => error)
assert.ok(missing instanceof UnhandledError, `${missing}`)
assert.deepEqual(await call('destroySandbox', of), { sandboxId: made.sandboxId, destroyed: true })
await connection.close()
console.log('all is well')
process.exit(0)
