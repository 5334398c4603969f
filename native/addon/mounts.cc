// Mounts of a pod's volume: a small tmpfs, and switching its superblock between read-only and writable. Only the
// superblock's flag applies to every mount of it; the flag of one mount does not affect the kubelet's bind mounts.
#include "addon.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mount.h>
#include <unistd.h>

namespace {

// A remount clears the flags that it does not repeat.
constexpr unsigned long flags_always = MS_NOSUID | MS_NODEV;

// Throws an error with the name of errno as its `code`, as Node's own errors have it.
Napi::Value fail(Napi::Env env, const std::string &what, const std::string &path) {
    const int number = errno;
    const char *name = strerrorname_np(number);
    const std::string code = name ? name : std::to_string(number);
    Napi::Error error = Napi::Error::New(env, what + " " + path + ": " + code + ": " + std::strerror(number));
    error.Set("code", Napi::String::New(env, code));
    error.ThrowAsJavaScriptException();
    return env.Undefined();
}

// Opens a folder, so that the mount is made on the folder that was checked, and never on the target of a link.
class Folder {
  public:
    explicit Folder(const std::string &path)
        : handle_(open(path.c_str(), O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC)),
          path_("/proc/self/fd/" + std::to_string(handle_)) {}
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    ~Folder() {
        if (handle_ >= 0) close(handle_);
    }
    bool is_open() const { return handle_ >= 0; }
    const char *path() const { return path_.c_str(); }

  private:
    int handle_;
    std::string path_;
};

// mountTmpfs(folder, options, mayExecute)
Napi::Value MountTmpfs(const Napi::CallbackInfo &info) {
    const std::string path = info[0].ToString().Utf8Value();
    const std::string options = info[1].ToString().Utf8Value();
    const unsigned long flags = flags_always | (info[2].ToBoolean() ? 0 : MS_NOEXEC);
    const Folder folder(path);
    if (!folder.is_open() || mount("cotenant", folder.path(), "tmpfs", flags, options.c_str()) != 0)
        return fail(info.Env(), "cannot mount a tmpfs at", path);
    return info.Env().Undefined();
}

// remount(folder, readOnly)
Napi::Value Remount(const Napi::CallbackInfo &info) {
    const std::string path = info[0].ToString().Utf8Value();
    const bool read_only = info[1].ToBoolean();
    const unsigned long flags = MS_REMOUNT | flags_always | (read_only ? MS_RDONLY : 0);
    const Folder folder(path);
    if (!folder.is_open() || mount(nullptr, folder.path(), nullptr, flags, nullptr) != 0)
        return fail(info.Env(), read_only ? "cannot make read-only" : "cannot make writable", path);
    return info.Env().Undefined();
}

// unmount(folder, lazy): lazy detaches it at once and ends it when its last user is gone.
Napi::Value Unmount(const Napi::CallbackInfo &info) {
    const std::string path = info[0].ToString().Utf8Value();
    const int flags = UMOUNT_NOFOLLOW | (info[1].ToBoolean() ? MNT_DETACH : 0);
    if (umount2(path.c_str(), flags) != 0) return fail(info.Env(), "cannot unmount", path);
    return info.Env().Undefined();
}

} // namespace

void InitMounts(Napi::Env env, Napi::Object exports) {
    exports.Set("mountTmpfs", Napi::Function::New(env, MountTmpfs));
    exports.Set("remount", Napi::Function::New(env, Remount));
    exports.Set("unmount", Napi::Function::New(env, Unmount));
}
