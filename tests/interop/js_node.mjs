// A js-libp2p node for panal's interop tests: bootstrap peer, DHT server and relay, on 127.0.0.1 or `host`.
//
// Prints one line of JSON when it is ready, then answers each line of JSON on stdin with one line:
//   {"do": "peers"}                      -> {"peers": [...], "table": size of its DHT routing table}
//   {"do": "get", "key": base64}         -> {"value": base64 or null}: its own DHT lookup
//   {"do": "providers", "key": base64}   -> {"providers": [...]}: the same, of a multihash
//   {"do": "dial", "address": multiaddr} -> {"peer": id}, after identify
//   {"do": "echo", "peer", "protocol", "data"} -> {"data"}: one exchange on a new stream
// It ends when stdin does.
import { createHash, createPublicKey, verify } from 'node:crypto'
import { createInterface } from 'node:readline'
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { identify, identifyPush } from '@libp2p/identify'
import { kadDHT, passthroughMapper } from '@libp2p/kad-dht'
import { noise } from '@libp2p/noise'
import { peerIdFromString } from '@libp2p/peer-id'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { decode } from '@msgpack/msgpack'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { CID } from 'multiformats/cid'

// What docs/protocol.md asks of a foreign DHT server: keep a record only if it is an advert under its own key.
function readAdvert (value) {
  if (value[0] !== 1) throw new Error('not an advert of version 1')
  const body = Buffer.from(value.subarray(65))
  const advert = decode(body)
  const key = peerIdFromString(advert.peer_id).publicKey.raw
  const spki = Buffer.concat([Buffer.from('302a300506032b6570032100', 'hex'), key])
  const signed = Buffer.concat([Buffer.from('panal-advert-1\0'), body])
  const publicKey = createPublicKey({ key: spki, format: 'der', type: 'spki' })
  if (!verify(null, signed, publicKey, value.subarray(1, 65))) throw new Error('wrong signature')
  return advert
}

function recordKey (advert) {
  const hash = createHash('sha256').update('panal-record-1\0').update(advert.swarm_id).update(advert.peer_id)
  return '/panal/' + hash.digest('base64url')
}

async function validate (key, value) {
  const advert = readAdvert(value)
  if (recordKey(advert) !== Buffer.from(key).toString()) throw new Error('an advert under another key')
  if (advert.issued_at + advert.lifetime + 300 < Date.now() / 1000) throw new Error('expired')
}

function select (key, values) {
  const seqs = values.map(value => readAdvert(value).seq)
  return seqs.indexOf(Math.max(...seqs))
}

const options = JSON.parse(process.argv[2] ?? '{}')
const services = {
  identify: identify(),
  identifyPush: identifyPush(),
  ping: ping(),
  dht: kadDHT({
    clientMode: false,
    // the default leaves out private addresses, which are all that a test has
    peerInfoMapper: passthroughMapper,
    initialQuerySelfInterval: 0,
    allowQueryWithZeroPeers: true,
    validators: options.validator === false ? {} : { panal: validate },
    selectors: options.validator === false ? {} : { panal: select }
  })
}
if (options.relay !== false) {
  services.relay = circuitRelayServer({
    reservations: { maxReservations: 16, applyDefaultLimit: options.limit ?? false }
  })
}
const node = await createLibp2p({
  addresses: { listen: [`/ip4/${options.host ?? '127.0.0.1'}/tcp/${options.port ?? 0}`] },
  transports: [tcp(), circuitRelayTransport()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services
})

async function answer (request) {
  switch (request.do) {
    case 'peers':
      return { peers: node.getPeers().map(String), table: node.services.dht.routingTable.size }
    case 'get':
      for await (const event of node.services.dht.get(Buffer.from(request.key, 'base64'))) {
        if (event.name === 'VALUE') return { value: Buffer.from(event.value).toString('base64') }
      }
      return { value: null }
    case 'providers': {
      const providers = new Set()
      for await (const event of node.services.dht.findProviders(CID.decode(Buffer.from(request.key, 'base64')))) {
        if (event.name === 'PROVIDER') event.providers.forEach(peer => providers.add(String(peer.id)))
      }
      return { providers: [...providers] }
    }
    case 'dial':
      return { peer: String((await node.dial(multiaddr(request.address))).remotePeer) }
    case 'echo': {
      const stream = await node.dialProtocol(peerIdFromString(request.peer), request.protocol)
      const data = Buffer.from(request.data, 'base64')
      stream.send(data)
      const parts = []
      let size = 0
      for await (const part of stream) {
        parts.push(Buffer.from(part.subarray()))
        size += part.byteLength
        if (size >= data.length) break
      }
      await stream.close()
      return { data: Buffer.concat(parts).toString('base64') }
    }
    default:
      throw new Error(`unknown request ${request.do}`)
  }
}

console.log(JSON.stringify({ peer: String(node.peerId), addresses: node.getMultiaddrs().map(String) }))
for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify(await answer(JSON.parse(line))))
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.message ?? error) }))
  }
}
await node.stop()
process.exit(0)
