// gRPC over unix sockets, as the kubelet speaks it: servers, connections and single calls.
import { chmodSync, mkdirSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import {
  Client,
  credentials,
  type MethodDefinition,
  Server,
  ServerCredentials,
  type ServiceDefinition,
  type ServiceError,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { fileIdentity } from '../../common/file-identity.ts';

/** Lists of a node with many pods or devices exceed gRPC's default of 4 MB. */
const MESSAGE_LIMITS = { 'grpc.max_receive_message_length': 64 << 20, 'grpc.max_send_message_length': 64 << 20 };

export type Services = readonly (readonly [ServiceDefinition, UntypedServiceImplementation])[];

/** `isThere`: the path still leads to this server's socket, not to a later one or to none. */
export type Listener = { readonly server: Server; isThere(): boolean };

/** Replaces what has that path, such as the socket of an agent that was killed. */
export async function listenOn(path: string, services: Services): Promise<Listener> {
  mkdirSync(dirname(path), { recursive: true, mode: 0o750 });
  rmSync(path, { force: true });
  const server = new Server(MESSAGE_LIMITS);
  for (const [definition, implementation] of services) server.addService(definition, implementation);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.bindAsync(`unix:${path}`, ServerCredentials.createInsecure(), (error) => (error ? reject(error) : resolve()));
  await promise;
  chmodSync(path, 0o600);
  const own = fileIdentity(path);
  return { server, isThere: () => fileIdentity(path) === own };
}

/** Go's clients send the same authority on unix sockets; a path is not a valid one. */
export const connectTo = (path: string): Client =>
  new Client(`unix:${path}`, credentials.createInsecure(), {
    'grpc.default_authority': 'localhost',
    ...MESSAGE_LIMITS,
  });

/** Rejects with gRPC's ServiceError, also when `signal` ends the call. */
export function callOnce<Request, Answer>(
  client: Client,
  method: MethodDefinition<Request, Answer>,
  request: Request,
  { withinMs, signal }: { readonly withinMs: number; readonly signal?: AbortSignal },
): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const call = client.makeUnaryRequest(
    method.path,
    method.requestSerialize,
    method.responseDeserialize,
    request,
    { deadline: Date.now() + withinMs },
    (error: ServiceError | null, answer?: Answer) => (error ? reject(error) : resolve(answer as Answer)),
  );
  signal?.addEventListener('abort', () => call.cancel());
  return promise;
}
