// Which proxy leads to a server, by the environment's variables, as in kubectl. Facts: golang.org/x/net/http/httpproxy
// (its documentation of Config, and of NO_PROXY).
import { BlockList, isIP, isIPv6 } from 'node:net';

/** The address of the proxy; undefined: the server is called directly. */
export function proxyFor(server: string, env: NodeJS.ProcessEnv): string | undefined {
  if (!URL.canParse(server)) return undefined;
  const { protocol, hostname, port } = new URL(server);
  const isSecure = protocol === 'https:';
  const scheme = isSecure ? 'https' : 'http';
  const proxy = env[`${scheme.toUpperCase()}_PROXY`] || env[`${scheme}_proxy`];
  const host = hostname.replace(/^\[(.*)\]$/, '$1').replace(/\.$/, '');
  if (!proxy || isLoopback(host)) return undefined;
  const direct = (env.NO_PROXY || env.no_proxy || '').toLowerCase().split(',');
  const address = { host, port: port || (isSecure ? '443' : '80') };
  if (direct.some((entry) => matches(entry.trim(), address))) return undefined;
  return proxy.includes('://') ? proxy : `http://${proxy}`;
}

const isLoopback = (host: string): boolean => host === 'localhost' || host === '::1' || /^127\.[\d.]+$/.test(host);

/** `*`, an address, a range of them (`10.0.0.0/8`), or a domain, also of single ports (`example.com:6443`). */
function matches(entry: string, { host, port }: { readonly host: string; readonly port: string }): boolean {
  if (entry === '*') return true;
  const [, folded = '', bits] = /^([\d.a-f:]+)\/(\d+)$/.exec(entry) ?? [];
  if (bits !== undefined) return isInRange(host, folded, Number(bits));
  const [, name = entry, only = port] = (isIPv6(entry) ? undefined : /^\[?(.*?)\]?:(\d+)$/.exec(entry)) ?? [];
  if (name === '' || only !== port) return false;
  if (isIP(name)) return name === host;
  const domain = name.replace(/^\*(?=\.)/, '');
  return domain.startsWith('.') ? host.endsWith(domain) : host === domain || host.endsWith(`.${domain}`);
}

function isInRange(host: string, first: string, bits: number): boolean {
  const version = isIP(first);
  if (version === 0 || isIP(host) !== version || bits > (version === 6 ? 128 : 32)) return false;
  const family = version === 6 ? 'ipv6' : 'ipv4';
  const range = new BlockList();
  range.addSubnet(first, bits, family);
  return range.check(host, family);
}
