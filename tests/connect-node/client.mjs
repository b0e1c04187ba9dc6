// Connect's own library for Node.js calls the sandbox host: unary calls and streams, errors in both, compressed messages,
// deadlines and cancellation. The service has no schema, so the one here names each field as its JSON does.
//
//   node client.mjs URL 1.1|2
import assert from 'node:assert/strict'
import { create, createFileRegistry } from '@bufbuild/protobuf'
import { FileDescriptorProtoSchema, StructSchema } from '@bufbuild/protobuf/wkt'
import { Code, ConnectError, createClient } from '@connectrpc/connect'
import { compressionGzip, createConnectTransport } from '@connectrpc/connect-node'

const [baseUrl, httpVersion] = process.argv.slice(2)

const TYPES = { string: 9, bool: 8, int32: 5, int64: 3 }

// `field(1, 'SessionID', 'string')`: its JSON name is the one given, whatever protobuf would make of it.
const field = (number, jsonName, type, label = 1) => ({
  name: jsonName.replace(/[^A-Za-z0-9]/g, '').toLowerCase(),
  jsonName,
  number,
  label,
  ...(TYPES[type] ? { type: TYPES[type] } : { type: 11, typeName: type }),
})
const message = (name, ...fields) => ({ name, field: fields.map((of, at) => field(at + 1, ...of)) })
const method = (name, input, output, serverStreaming = false) => ({
  name, inputType: `.rpc.v1.${input}`, outputType: `.rpc.v1.${output}`, serverStreaming,
})

const file = create(FileDescriptorProtoSchema, {
  name: 'rpc/v1/sandbox.proto',
  package: 'rpc.v1',
  syntax: 'proto3',
  dependency: ['google/protobuf/struct.proto'],
  messageType: [
    message('Empty'),
    message('CreateSession', ['SessionID', 'string'], ['BaseSnapshot', 'string']),
    message('SessionRequest', ['SessionID', 'string']),
    message('Session', ['ID', 'string'], ['State', 'string']),
    message('SessionAnswer', ['Session', '.rpc.v1.Session']),
    message('ToolRequest', ['SessionID', 'string'], ['ToolCallID', 'string'], ['ToolName', 'string'],
      ['Params', '.google.protobuf.Struct']),
    message('ToolResponse', ['SessionID', 'string'], ['ToolCallID', 'string'], ['Content', 'string'],
      ['ExitCode', 'int32'], ['Tier', 'int32'], ['Duration', 'int64']),
    message('Progress', ['Content', 'string'], ['IsError', 'bool']),
    message('ToolFrame', ['Progress', '.rpc.v1.Progress'], ['Response', '.rpc.v1.ToolResponse']),
  ],
  service: [{
    name: 'SandboxService',
    method: [
      method('CreateSession', 'CreateSession', 'SessionAnswer'),
      method('GetSession', 'SessionRequest', 'SessionAnswer'),
      method('DestroySession', 'SessionRequest', 'Empty'),
      method('ExecuteTool', 'ToolRequest', 'ToolResponse'),
      method('ExecuteToolStream', 'ToolRequest', 'ToolFrame', true),
      method('NoSuchMethod', 'Empty', 'Empty'),
    ],
  }],
})
const registry = createFileRegistry(file, (name) => (
  name === 'google/protobuf/struct.proto' ? StructSchema.file : undefined
))
const service = registry.getService('rpc.v1.SandboxService')

const transport = (more = {}) => createConnectTransport({
  baseUrl,
  httpVersion,
  useBinaryFormat: false,
  jsonOptions: { ignoreUnknownFields: true },
  interceptors: [(next) => async (request) => {
    request.header.set('x-api-version', 'v1')
    const answer = await next(request)
    assert.equal(answer.header.get('x-api-version'), 'v1', 'the version of the answer')
    return answer
  }],
  ...more,
})
const client = createClient(service, transport())

const bash = (toolcallid, cmd, sessionid = 'node') => (
  { sessionid, toolcallid, toolname: 'bash', params: { cmd } }
)
const failed = async (code, call) => {
  const error = await call().then(() => assert.fail('it succeeded'), ConnectError.from)
  assert.equal(Code[error.code], Code[code], error.message)
  return error
}
const all = async (stream) => {
  const frames = []
  for await (const frame of stream) frames.push(frame)
  return frames
}

const { session } = await client.createSession({ sessionid: 'node' })
assert.deepEqual([session.id, session.state], ['node', 'active'])
await failed(Code.AlreadyExists, () => client.createSession({ sessionid: 'node' }))
await failed(Code.InvalidArgument, () => client.createSession({ sessionid: '../x' }))
await failed(Code.NotFound, () => client.getSession({ sessionid: 'nobody' }))
await failed(Code.Unimplemented, () => client.noSuchMethod({}))

const ran = await client.executeTool(bash('unary', 'echo out; exit 3'))
assert.deepEqual([ran.toolcallid, ran.exitcode, ran.tier], ['unary', 3, 2])
assert.ok(ran.duration > 0n, 'nanoseconds')

// Progress as it happens, one response, and nothing after it.
const frames = await all(client.executeToolStream(bash('stream', "echo one; echo two >&2; printf '\\303\\251'")))
const said = (isError) => frames.map((frame) => frame.progress)
  .filter((progress) => progress?.iserror === isError).map((progress) => progress.content).join('')
assert.deepEqual([said(false), said(true)], ['one\né', 'two\n'])
const responses = frames.filter((frame) => frame.response)
assert.deepEqual([responses.length, responses[0].response.toolcallid], [1, 'stream'])
assert.ok(frames.at(-1).response, 'the response is the last frame')
const replayed = await all(client.executeToolStream(bash('stream', "echo one; echo two >&2; printf '\\303\\251'")))
assert.equal(replayed.length, 1, 'a kept answer is one frame')

// Errors of a stream are in the frame that ends it.
await failed(Code.NotFound, () => all(client.executeToolStream(bash('lost', 'true', 'nobody'))))
await failed(Code.InvalidArgument, () => all(client.executeToolStream(bash('', 'true'))))

// Compressed messages, unary and in frames.
const packing = createClient(service, transport({
  sendCompression: compressionGzip, compressMinBytes: 0,
}))
const long = `echo ${'packed '.repeat(500)}`
assert.match((await packing.executeTool(bash('gzip', long))).content, /packed/)
assert.ok((await all(packing.executeToolStream(bash('gzip-stream', long)))).at(-1).response)

// A deadline, and a client that leaves.
await failed(Code.DeadlineExceeded, () => client.executeTool(bash('late', 'sleep 100'), { timeoutMs: 300 }))
await failed(Code.DeadlineExceeded, () => (
  all(client.executeToolStream(bash('late-stream', 'sleep 100'), { timeoutMs: 300 }))
))
const leave = new AbortController()
await failed(Code.Canceled, async () => {
  const endless = bash('endless', 'while echo tick; do sleep 0.05; done')
  for await (const frame of client.executeToolStream(endless, { signal: leave.signal })) {
    assert.equal(frame.progress.iserror, false)
    leave.abort()
  }
})

// Many at once, on as few connections as the protocol allows.
await Promise.all(Array.from({ length: 50 }, async (_, at) => {
  const answered = await all(client.executeToolStream(bash(`many-${at}`, `echo ${at}`)))
  assert.equal(answered.at(-1).response.content.trim(), String(at))
}))

await client.destroySession({ sessionid: 'node' })
await failed(Code.NotFound, () => client.destroySession({ sessionid: 'node' }))
console.log('all kept')
process.exit(0)
