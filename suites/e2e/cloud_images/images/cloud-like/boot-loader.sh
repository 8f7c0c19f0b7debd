#!/bin/sh
# Makes GRUB's images and its menu, as grub-install and update-grub do on a disk that is there
# already; runs inside the root file system while it is built. What lies in /boot/loader is for
# whoever partitions the disk.
set -eu
root=LABEL=node-root
. /etc/default/grub
modules="part_gpt ext2 fat normal linux configfile search search_label loadenv test echo reboot"
loader=/boot/loader
mkdir -p "$loader" /boot/grub
cp -r /usr/lib/grub/i386-pc /usr/lib/grub/x86_64-efi /boot/grub/

# shellcheck disable=SC2086 # names of modules hold no blanks
grub-mkimage -O i386-pc -o "$loader/core.img" -p '(hd0,gpt1)/boot/grub' biosdisk $modules
cp /usr/lib/grub/i386-pc/boot.img "$loader/"

# The volume of UEFI has the removable path alone, which firmware tries by itself.
cat >"$loader/early.cfg" <<'EARLY'
search --no-floppy --label node-root --set=root
set prefix=($root)/boot/grub
configfile $prefix/grub.cfg
EARLY
# shellcheck disable=SC2086
grub-mkimage -O x86_64-efi -o "$loader/bootx64.efi" -c "$loader/early.cfg" -p /boot/grub $modules
mkfs.vfat -C -n ESP "$loader/esp.img" 16384 >/dev/null
mmd -i "$loader/esp.img" ::/EFI ::/EFI/BOOT
mcopy -i "$loader/esp.img" "$loader/bootx64.efi" ::/EFI/BOOT/BOOTX64.EFI

grub-editenv /boot/grub/grubenv create
{
    cat <<'HEAD'
set timeout=0
set menuentry_id_option=--id
load_env
if [ "${next_entry}" ] ; then
  set default="${next_entry}"
  set next_entry=
  save_env next_entry
else
  set default="0"
fi
HEAD
    for kernel in $(linux-version list | sort --version-sort --reverse); do
        cat <<ENTRY
menuentry 'Debian GNU/Linux, with Linux $kernel' --class debian \$menuentry_id_option 'gnulinux-$kernel-advanced' {
  search --no-floppy --label node-root --set=root
  linux /boot/vmlinuz-$kernel root=$root ro $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT
  initrd /boot/initrd.img-$kernel
}
ENTRY
    done
} >/boot/grub/grub.cfg
# Started on demand only, as in the images that we build.
systemctl disable docker-registry.service
echo "$root / ext4 defaults 0 1" >/etc/fstab
