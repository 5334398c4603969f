// Whether Kubernetes' API has the fields that an object uses, by the models of its own client, which list them all.
// Owns the walk. Objects of others (Prometheus operator, cert-manager) have no model there and are not looked at.
import * as models from '@kubernetes/client-node';
import type { Json } from './chart.ts';

type Attribute = { readonly name: string; readonly baseName: string; readonly type: string };
type Model = { readonly attributeTypeMap?: readonly Attribute[] };

const VERSIONS: Readonly<Record<string, string>> = {
  v1: 'V1',
  'apps/v1': 'V1',
  'batch/v1': 'V1',
  'policy/v1': 'V1',
  'storage.k8s.io/v1': 'V1',
  'rbac.authorization.k8s.io/v1': 'V1',
  'admissionregistration.k8s.io/v1': 'V1',
};
const MODELS = models as unknown as Readonly<Record<string, Model>>;
// The client names this model after its group, since another one has its name.
const RENAMED: Readonly<Record<string, string>> = { V1Event: 'CoreV1Event', V1Subject: 'RbacV1Subject' };

/** Paths of fields that the API does not have, after the object's kind; also an object that is of no known kind. */
export function unknownFields(object: Json): readonly string[] {
  const version = VERSIONS[String(object.apiVersion)];
  const kind = String(object.kind);
  if (version === undefined)
    return /coreos\.com|cert-manager/.test(String(object.apiVersion)) ? [] : [`${kind}: ${object.apiVersion}`];
  return walk(object, version + kind, '').map((path) => `${kind}: ${path}`);
}

function walk(value: Json, type: string, path: string): readonly string[] {
  const [, item] = /^Array<(.+)>$/.exec(type) ?? [];
  if (item !== undefined) {
    if (!Array.isArray(value)) return [`${path} is no list`];
    return value.flatMap((entry: Json, index) => walk(entry, item, `${path}.${index}`));
  }
  const attributes = MODELS[RENAMED[type] ?? type]?.attributeTypeMap;
  // Maps, plain values and free-form objects.
  if (attributes === undefined) return /^V\d/.test(type) ? [`${path}: no model ${type}`] : [];
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return [`${path} is no object`];
  return Object.entries(value).flatMap(([key, entry]) => {
    const attribute = attributes.find(({ baseName }) => baseName === key);
    const at = path === '' ? key : `${path}.${key}`;
    return attribute === undefined ? [at] : walk(entry, attribute.type, at);
  });
}
